"""The benchmark's language model and training step in plain PyTorch, for every device.

Attention is written out, because `scaled_dot_product_attention` of TorchTPU is a kernel for TPUs
only: so both sides run the same ops on a CPU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.benchmarks import sizes
from tests.benchmarks.sizes import Size


class Block(nn.Module):
    """Pre-norm attention and SwiGLU."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norm1 = nn.RMSNorm(width, eps=sizes.NORM_EPSILON)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width, eps=sizes.NORM_EPSILON)
        self.gate = nn.Linear(width, size.hidden, bias=False)
        self.up = nn.Linear(width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, width, bias=False)

    def forward(self, x: Tensor, future: Tensor) -> Tensor:
        h = self.norm1(x)
        query, key, value = (self._split(f(h)) for f in (self.query, self.key, self.value))
        scores = (query @ key.transpose(-2, -1)) * query.shape[-1] ** -0.5
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        attended = weights @ value
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        h = self.norm2(x)
        gated: Tensor = self.down(functional.silu(self.gate(h)) * self.up(h))
        return x + gated

    def _split(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, self.heads, -1).transpose(1, 2)


class LanguageModel(nn.Module):
    """Decoder-only transformer with learned positions; returns logits."""

    future: Tensor  # True where a position must not look

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.position = nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, eps=sizes.NORM_EPSILON)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        ones = torch.ones(size.length, size.length, dtype=torch.bool)
        self.register_buffer("future", ones.triu(1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position.weight
        for block in self.blocks:
            x = block(x, self.future)
        logits: Tensor = self.head(self.norm(x))
        return logits


def build_model(size: Size) -> LanguageModel:
    """The model with the benchmark's own initial parameters, on the CPU."""
    model = LanguageModel(size)
    start = {name: torch.from_numpy(a) for name, a in sizes.initial_parameters(size).items()}
    model.load_state_dict(start)
    return model


class TrainingStep:
    """Forward, backward and AdamW (foreach) on one batch; returns the loss, still on the device."""

    def __init__(self, size: Size, device: str) -> None:
        self.model = build_model(size).to(device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=sizes.LEARNING_RATE,
            betas=(sizes.BETA1, sizes.BETA2),
            eps=sizes.EPSILON,
            weight_decay=sizes.WEIGHT_DECAY,
            foreach=True,
        )
        self.batches = [
            (
                torch.from_numpy(tokens[:, :-1].astype("int64")).to(device),
                torch.from_numpy(tokens[:, 1:].astype("int64")).to(device),
            )
            for tokens in sizes.token_batches(size)
        ]

    def __call__(self, tokens: Tensor, targets: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        self.optimizer.step()
        return loss.detach()
