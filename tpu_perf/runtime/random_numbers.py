"""The device's generator: a seed and a count of draws, so every mode draws the same numbers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: What a fresh process starts from, as torch's own default generators do.
DEFAULT_SEED = 67280421310721


class Generator:
    """Draw number `offset` of seed `seed` is a pure function of the two (threefry)."""

    __slots__ = ("_lock", "initial_seed", "offset", "seed")

    def __init__(self, seed: int = DEFAULT_SEED) -> None:
        self._lock = threading.Lock()
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> None:
        """Start a new stream. Negative seeds wrap, as in torch."""
        self.seed = self.initial_seed = int(seed) & 0xFFFF_FFFF_FFFF_FFFF
        self.offset = 0

    @property
    def signed_seed(self) -> int:
        """The seed's 64 bits as an int64, the type in which programs take it."""
        return self.seed - (1 << 64) if self.seed >= 1 << 63 else self.seed

    def take(self, draws: int = 1) -> tuple[int, int]:
        """Reserve draws; returns (seed, first offset), both fitting int64."""
        with self._lock:
            first = self.offset
            self.offset = first + draws
        return self.signed_seed, first

    def get_state(self) -> torch.Tensor:
        """Seed and offset as 16 bytes, a CPU uint8 tensor."""
        words = torch.tensor([self.signed_seed, self.offset], dtype=torch.int64)
        return words.view(torch.uint8).clone()

    def set_state(self, state: torch.Tensor) -> None:
        if state.dtype != torch.uint8 or state.numel() != 16:
            raise ValueError("a tpu generator state is a uint8 tensor of 16 bytes")
        seed, offset = state.detach().cpu().contiguous().view(torch.int64).tolist()
        self.seed = self.initial_seed = seed & 0xFFFF_FFFF_FFFF_FFFF
        self.offset = offset


GENERATOR = Generator()

#: CPU ops that draw, in the forms that modules reach on the CPU.
_DRAWS = {
    "aten::bernoulli_.float", "aten::native_dropout", "aten::bernoulli.p", "aten::bernoulli",
    "aten::rand", "aten::randn", "aten::rand_like", "aten::randn_like", "aten::normal_",
    "aten::uniform_", "aten::randint", "aten::randperm", "aten::exponential_",
}  # fmt: skip


class _DeviceNumbers(TorchDispatchMode):
    """Runs random CPU ops on the device and brings the result back."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name + (f".{func._overloadname}" if func._overloadname != "default"
                                else "") not in _DRAWS:  # fmt: skip
            return func(*args, **kwargs)
        moved = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda t: t.to("tpu"), (args, kwargs)
        )
        on_device = {**moved[1]}
        if "device" in on_device:
            on_device["device"] = torch.device("tpu")
        on_device.pop("generator", None)
        result = func(*moved[0], **on_device)
        host = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), result)
        if func._schema.is_mutable:
            args[0].copy_(host)
            return args[0]
        return host


@contextmanager
def reference_random(seed: int) -> Iterator[None]:
    """Inside, torch on the CPU draws the numbers that device "tpu" would draw from `seed`, so
    that a model with dropout can be compared value by value."""
    from tpu_perf.runtime import device

    device.load()
    before = GENERATOR.get_state()
    GENERATOR.manual_seed(seed)
    try:
        with _DeviceNumbers():  # type: ignore[no-untyped-call]
            yield
    finally:
        GENERATOR.set_state(before)
