"""The module torch.tpu: TorchTPU's public names on this runtime."""

from __future__ import annotations

import contextlib
import sys
import time
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tpu_perf.runtime import jax_private
from tpu_perf.runtime.memory import MEMORY
from tpu_perf.runtime.modes import STATE, EagerMode, mode_set_to, switch
from tpu_perf.runtime.program_cache import CACHE, statistics
from tpu_perf.runtime.random_numbers import GENERATOR
from tpu_perf.runtime.transfers import synchronize as _synchronize


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What is known about the device; None where the backend does not say."""

    name: str
    platform: str
    total_memory: int | None
    device_kind: str
    core_count: int | None


class Stream:
    """The device runs programs in the order of their data; a stream here is a name for that one
    order, kept so that code written for streams runs."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device_index = 0
        self.stream_id = 0
        self.priority = priority

    @property
    def device(self) -> torch.device:
        return torch.device("tpu", 0)

    def synchronize(self) -> None:
        _synchronize()

    def query(self) -> bool:
        return True

    def wait_stream(self, stream: Any) -> None:
        """Nothing to do: one order."""

    def wait_event(self, event: Any) -> None:
        """Nothing to do: one order."""

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return 0


class Event:
    """A point in the device's work. With timing on, `record` waits for the device, because XLA
    does not time-stamp programs; elapsed_time is then host time between finished points."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **_: Any) -> None:
        self.enable_timing = enable_timing
        self._time_ns: int | None = None

    def record(self, stream: Any = None) -> None:
        if self.enable_timing:
            _synchronize()
        self._time_ns = time.perf_counter_ns()

    def synchronize(self) -> None:
        if self._time_ns is not None:
            _synchronize()

    def wait(self, stream: Any = None) -> None:
        """Nothing to do: one order."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`; both need enable_timing and a record."""
        if not (self.enable_timing and end.enable_timing):
            raise RuntimeError("both events must be made with enable_timing=True")
        if self._time_ns is None or end._time_ns is None:
            raise RuntimeError("both events must be recorded before elapsed_time")
        return (end._time_ns - self._time_ns) / 1e6


class device:  # torch's own name for it
    """Context manager: make a device current. There is one."""

    def __init__(self, device: Any = None) -> None:
        self.idx = _index(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None


class device_of(device):
    """As `device`, of a tensor's device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "tpu" else None)


def _index(device: Any) -> int:
    if device is None:
        return 0
    if isinstance(device, int):
        index = device
    else:
        found = torch.device(device)
        if found.type != "tpu":
            raise ValueError(f"expected a tpu device, not {found}")
        index = found.index or 0
    if not -1 <= index < device_count():
        raise RuntimeError(f"tpu device {index} does not exist: this process has {device_count()}")
    return max(index, 0)


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    """The device is ready once loaded."""


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def set_device(device: Any) -> None:
    _index(device)


def exchange_device(index: int) -> int:
    return 0


def maybe_exchange_device(index: int) -> int:
    return 0


def get_device_name(device: Any = None) -> str:
    _index(device)
    return str(jax_private.device().device_kind)


def get_device_properties(device: Any = None) -> DeviceProperties:
    _index(device)
    target = jax_private.device()
    stats = _backend_memory()
    return DeviceProperties(
        name=target.device_kind, platform=target.platform, device_kind=target.device_kind,
        total_memory=stats.get("bytes_limit"), core_count=None,
    )  # fmt: skip


def get_device_capability(device: Any = None) -> tuple[int, int]:
    return (0, 0)


def _backend_memory() -> Mapping[str, int]:
    try:
        return dict(jax_private.device().memory_stats() or {})
    except Exception:  # optional in PJRT
        return {}


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def current_stream(device: Any = None) -> Stream:
    return _STREAM


def default_stream(device: Any = None) -> Stream:
    return _STREAM


def set_stream(stream: Any) -> None:
    """Nothing to do: one order."""


@contextlib.contextmanager
def stream(stream: Any) -> Iterator[Any]:
    yield stream


_STREAM = Stream()


def synchronize(device: Any = None) -> None:
    """Run what is deferred and wait until the device is idle."""
    _synchronize()


def set_eager_mode(mode: EagerMode) -> Any:
    """Change how ops run, at once; as a context manager, until the block ends."""
    before = STATE.mode
    switch(mode)

    class _Restore(contextlib.AbstractContextManager[None]):
        def __enter__(self) -> None:
            return None

        def __exit__(self, *exc: object) -> None:
            switch(before)

    return _Restore()


def manual_seed(seed: int) -> None:
    GENERATOR.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    GENERATOR.manual_seed(seed)


def seed() -> int:
    GENERATOR.manual_seed(int.from_bytes(__import__("os").urandom(8), "little"))
    return GENERATOR.seed


def seed_all() -> None:
    seed()


def initial_seed() -> int:
    return GENERATOR.initial_seed


def get_rng_state(device: Any = "tpu") -> torch.Tensor:
    _index(device)
    return GENERATOR.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "tpu") -> None:
    _index(device)
    GENERATOR.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [GENERATOR.get_state()]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    GENERATOR.set_state(states[0])


def memory_allocated(device: Any = None) -> int:
    """Bytes of live device buffers."""
    return MEMORY.allocated


def max_memory_allocated(device: Any = None) -> int:
    """Peak of `memory_allocated` since the last reset, bytes."""
    return MEMORY.peak


def memory_reserved(device: Any = None) -> int:
    return MEMORY.allocated


def max_memory_reserved(device: Any = None) -> int:
    return MEMORY.peak


def reset_peak_memory_stats(device: Any = None) -> None:
    MEMORY.reset_peak()


def memory_stats(device: Any = None) -> dict[str, int]:
    """Counters in bytes and counts, with the backend's own where it has any."""
    return {
        "allocated_bytes.all.current": MEMORY.allocated,
        "allocated_bytes.all.peak": MEMORY.peak,
        "allocation.all.allocated": MEMORY.allocations,
        "allocation.all.freed": MEMORY.releases,
        **{f"backend.{k}": v for k, v in _backend_memory().items()},
    }


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes. Raises RuntimeError where the backend does not say (XLA:CPU)."""
    total = _backend_memory().get("bytes_limit")
    if total is None:
        raise RuntimeError("this backend does not report its memory size")
    return total - MEMORY.allocated, total


def empty_cache() -> None:
    """XLA frees buffers when they die: there is no allocator cache to empty."""


def _hbm_usage_summary() -> str:
    return f"live {MEMORY.allocated} bytes, peak {MEMORY.peak} bytes"


def _get_cache_stats() -> dict[str, Any]:
    return dict(statistics(CACHE))


def _clear_cache() -> None:
    from tpu_perf.runtime.forgetting import forget_programs

    forget_programs()


def _set_allow_cache(allow: bool) -> None:
    CACHE.allowed = allow


def _set_cache_only(only: bool) -> None:
    CACHE.cache_only = only


def _is_in_bad_fork() -> bool:
    return _forked


_forked = False


class _Module(types.ModuleType):
    """torch.tpu, with `eager_mode` as a property."""

    @property
    def eager_mode(self) -> EagerMode:
        return STATE.mode


def module() -> types.ModuleType:
    """The module object to install as torch.tpu."""
    made = _Module("torch.tpu", __doc__)
    here = sys.modules[__name__]
    for name, value in vars(here).items():
        if not name.startswith("__") and name not in ("module", "finish", "annotations"):
            setattr(made, name, value)
    made.EagerMode = EagerMode  # type: ignore[attr-defined]
    made.default_generators = (GENERATOR,)  # type: ignore[attr-defined]
    made._mode_set_to = mode_set_to  # type: ignore[attr-defined]
    return made


def finish() -> None:
    """What can only be done once PyTorch knows the device."""
    sys.modules["torch.tpu"] = torch.tpu  # type: ignore[attr-defined]
