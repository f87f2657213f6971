"""The device's generators: a seed and a count of draws, so every mode draws the same numbers."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: What a fresh process starts from, as torch's own default generators do.
DEFAULT_SEED = 67280421310721


class Draws:
    """Draw number `offset` of seed `seed` is a pure function of the two (threefry)."""

    __slots__ = ("__weakref__", "_lock", "initial_seed", "offset", "seed")

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
        words = torch.tensor([self.signed_seed, self.offset], dtype=torch.int64, device="cpu")
        return words.view(torch.uint8).clone()

    def set_state(self, state: torch.Tensor) -> None:
        if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8:
            raise TypeError("expected a torch.ByteTensor as the state of a tpu generator")
        if state.numel() != 16:
            raise RuntimeError(
                f"the state of a tpu generator has 16 bytes, not {state.numel()}; a state of "
                "another device's generator cannot be used"
            )
        words = state.detach().cpu().contiguous().clone().view(torch.int64).tolist()
        seed, offset = words
        self.seed = self.initial_seed = seed & 0xFFFF_FFFF_FFFF_FFFF
        self.offset = offset


GENERATOR = Draws()


class TpuGenerator(torch._C.Generator):
    """torch.Generator(device="tpu").

    Torch makes generators only for backends in C++, so this is its CPU generator with the
    device's draws in front; kernels know it again by the address of torch's part.
    """

    def __new__(cls, device: Any = "tpu", draws: Draws | None = None) -> TpuGenerator:
        return super().__new__(cls, torch.device("cpu"))  # type: ignore[call-arg]

    def __init__(self, device: Any = "tpu", draws: Draws | None = None) -> None:
        self.draws = draws or Draws()
        _by_address[self._cdata] = self  # type: ignore[attr-defined]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("tpu", 0)

    def manual_seed(self, seed: int) -> TpuGenerator:
        self.draws.manual_seed(seed)
        return self

    def seed(self) -> int:
        self.draws.manual_seed(int.from_bytes(os.urandom(8), "little"))
        return self.draws.seed

    def initial_seed(self) -> int:
        return self.draws.initial_seed

    def get_state(self) -> torch.Tensor:
        return self.draws.get_state()

    def set_state(self, new_state: torch.Tensor) -> TpuGenerator:
        self.draws.set_state(new_state)
        return self

    def get_offset(self) -> int:
        """How many draws were taken since the seed was set."""
        return self.draws.offset

    def set_offset(self, offset: int) -> TpuGenerator:
        self.draws.offset = int(offset)
        return self

    def clone_state(self) -> TpuGenerator:
        """A generator that goes on from here on its own."""
        return TpuGenerator().set_state(self.get_state())

    def graphsafe_get_state(self) -> TpuGenerator:
        return self

    def graphsafe_set_state(self, state: torch.Generator) -> TpuGenerator:
        return self.set_state(state.get_state())

    def __reduce__(self) -> Any:
        return _rebuild, (self.get_state(),)

    def __deepcopy__(self, memo: Any) -> TpuGenerator:
        return self.clone_state()


_by_address: weakref.WeakValueDictionary[int, TpuGenerator] = weakref.WeakValueDictionary()


def _rebuild(state: torch.Tensor) -> TpuGenerator:
    return TpuGenerator().set_state(state)


def draws_of(generator: Any) -> Draws:
    """The draws behind an op's `generator` argument. Raises RuntimeError for one of another
    device, as torch does."""
    if generator is None:
        return GENERATOR
    found = _by_address.get(generator._cdata)
    if found is None:
        raise RuntimeError(
            f"Expected a 'tpu' device type for generator but found '{generator.device.type}'; "
            "make it with torch.Generator(device='tpu')"
        )
    return found.draws


#: What torch.tpu.default_generators holds.
DEFAULT_GENERATOR = TpuGenerator(draws=GENERATOR)

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
