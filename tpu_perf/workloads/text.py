"""English text that ships with CPython, as byte-level tokens in seeded, shuffled batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tpu_perf.errors import WorkloadError

if TYPE_CHECKING:
    import torch

#: Bytes are tokens 0-255; the specials follow.
MASK, CLS, SEP, PAD = 256, 257, 258, 259
VOCABULARY = 260

IGNORED_LABEL = -100
_MASKED_FRACTION = 0.15


def corpus() -> bytes:
    """The help texts of Python's own reference manual, in the order of their topics."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics)).encode("utf-8")


@dataclass(frozen=True)
class TextBlocks:
    """The corpus cut into blocks of `sequence_length` tokens, drawn in a seeded order.

    Random access: `block_batch(i)` depends on nothing but the fields and i. Every epoch visits
    each block once, in an order of its own.
    """

    sequence_length: int
    batch_size: int
    seed: int

    @cached_property
    def blocks(self) -> torch.Tensor:
        import torch

        text = torch.frombuffer(bytearray(corpus()), dtype=torch.uint8).long()
        count = len(text) // self.sequence_length
        if count < self.batch_size:
            raise WorkloadError(
                f"the text has {len(text)} tokens: too few for a batch of {self.batch_size} "
                f"blocks of {self.sequence_length}",
                hint="lower batch_size or sequence_length",
            )
        return text[: count * self.sequence_length].view(count, self.sequence_length)

    def block_batch(self, index: int) -> torch.Tensor:
        """The tokens of step `index`, shape (batch_size, sequence_length), int64."""
        import torch

        first = index * self.batch_size
        rows = [self._row(i) for i in range(first, first + self.batch_size)]
        return self.blocks[torch.tensor(rows)]

    def _row(self, sample: int) -> int:
        epoch, position = divmod(sample, len(self.blocks))
        return self._orders(epoch)[position]

    def _orders(self, epoch: int) -> list[int]:
        known: dict[int, list[int]] = self.__dict__.setdefault("_order_of_epoch", {})
        if epoch not in known:
            import torch

            order = torch.randperm(len(self.blocks), generator=generator(self.seed, epoch))
            known[epoch] = order.tolist()
        return known[epoch]


def generator(seed: int, index: int) -> torch.Generator:
    """A random stream of its own for every (seed, index)."""
    import torch

    return torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)


def mask_tokens(tokens: torch.Tensor, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """BERT's masking: of 15 % of the tokens, 80 % become MASK, 10 % another byte, 10 % stay.

    Returns (input tokens, labels); labels are IGNORED_LABEL where nothing is to be predicted.
    """
    import torch

    chosen = torch.rand(tokens.shape, generator=random) < _MASKED_FRACTION
    labels = torch.where(chosen, tokens, IGNORED_LABEL)
    fate = torch.rand(tokens.shape, generator=random)
    other = torch.randint(0, 256, tokens.shape, generator=random)
    changed = torch.where(fate < 0.8, torch.full_like(tokens, MASK), tokens)
    changed = torch.where((fate >= 0.8) & (fate < 0.9), other, changed)
    return torch.where(chosen, changed, tokens), labels
