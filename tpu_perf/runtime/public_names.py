"""The module torch.tpu: TorchTPU's public names on this runtime."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from tpu_perf.runtime import jax_private, streams
from tpu_perf.runtime.autoload import MODULE, DeviceModule
from tpu_perf.runtime.exchange import from_jax, to_jax
from tpu_perf.runtime.failures import total_bytes
from tpu_perf.runtime.memory import MEMORY
from tpu_perf.runtime.mesh import topology_aware_mesh
from tpu_perf.runtime.modes import STATE, EagerMode, mode_set_to, switch
from tpu_perf.runtime.program_cache import CACHE, statistics
from tpu_perf.runtime.random_numbers import DEFAULT_GENERATOR, GENERATOR
from tpu_perf.runtime.recompiles import as_json as _recompiles
from tpu_perf.runtime.transfers import synchronize as _synchronize


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What is known about the device; None where the backend does not say."""

    name: str
    platform: str
    total_memory: int
    device_kind: str
    core_count: int | None


Stream = streams.Stream
Event = streams.Event

__all__ = ["from_jax", "to_jax", "topology_aware_mesh"]


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
    if not -1 <= index < MODULE.device_count():
        raise RuntimeError(
            f"tpu device {index} does not exist: this process has {MODULE.device_count()}"
        )
    return max(index, 0)


def init() -> None:
    """The device is ready once loaded."""


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
    return DeviceProperties(
        name=target.device_kind, platform=target.platform, device_kind=target.device_kind,
        total_memory=total_bytes(), core_count=None,
    )  # fmt: skip


def get_device_capability(device: Any = None) -> tuple[int, int]:
    return (0, 0)


def _backend_memory() -> Mapping[str, int]:
    try:
        return dict(jax_private.device().memory_stats() or {})
    except Exception:  # optional in PJRT
        return {}


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def current_stream(device: Any = None) -> Stream:
    _index(device)
    return streams.current()


def default_stream(device: Any = None) -> Stream:
    _index(device)
    return streams.default()


def set_stream(stream: Any) -> None:
    """Make a stream this thread's current one; None changes nothing."""
    streams.set_current(stream)


def stream(stream: Any) -> contextlib.AbstractContextManager[Any]:
    """Inside, `stream` is this thread's current stream; None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream


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


def seed() -> int:
    GENERATOR.manual_seed(int.from_bytes(os.urandom(8), "little"))
    return GENERATOR.seed


def seed_all() -> None:
    seed()


def get_rng_state_all() -> list[torch.Tensor]:
    return [GENERATOR.get_state()]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    GENERATOR.set_state(states[0])


def memory_allocated(device: Any = None) -> int:
    """Bytes of live device buffers."""
    _index(device)
    return MEMORY.allocated


def max_memory_allocated(device: Any = None) -> int:
    """Peak of `memory_allocated` since the last reset, bytes."""
    _index(device)
    return MEMORY.peak


#: XLA frees buffers when they die: nothing is held in reserve.
memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: Any = None) -> None:
    _index(device)
    MEMORY.reset_peak()


reset_max_memory_allocated = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    _index(device)
    MEMORY.reset_accumulated()


def memory_stats(device: Any = None) -> dict[str, int]:
    """Counters in bytes and counts, with the backend's own where it has any."""
    _index(device)
    return {
        **MEMORY.statistics(),
        **{f"backend.{k}": v for k, v in _backend_memory().items()},
    }


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """`memory_stats` as a table, a line a counter."""
    return "\n".join(f"{name:<32} {value:>20,}" for name, value in memory_stats(device).items())


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device; of the machine where programs run on its CPU."""
    _index(device)
    total = _backend_memory().get("bytes_limit")
    if total is None:
        machine = psutil.virtual_memory()
        return machine.available, machine.total
    return total - MEMORY.allocated, total


def empty_cache() -> None:
    """XLA frees buffers when they die: there is no allocator cache to empty."""


def ipc_collect() -> None:
    """Tensors of this device are not shared with other processes."""


def _hbm_usage_summary() -> str:
    return f"live {MEMORY.allocated} bytes, peak {MEMORY.peak} bytes"


def _get_cache_stats() -> dict[str, Any]:
    """TorchTPU's document and, under "recompiles", why compiled functions were compiled again."""
    return {**statistics(CACHE), "recompiles": _recompiles()}


def _clear_cache() -> None:
    from tpu_perf.runtime.forgetting import forget_programs

    forget_programs()


def _get_cache_requests() -> int:
    return int(statistics(CACHE)["num_cache_reqs"])


def _get_cache_hits() -> int:
    return int(statistics(CACHE)["num_cache_hits"])


def _get_cache_misses() -> int:
    return CACHE.misses


def _set_allow_cache(allow: bool = True) -> None:
    """With False every new op compiles its program, whatever the tiers hold."""
    CACHE.allowed = allow


def _set_cache_only(only: bool = True) -> None:
    """With True a program that no tier has is an error instead of being compiled."""
    CACHE.cache_only = only


def _set_dump_on_cache_miss(enable: bool = True) -> None:
    """With True each program that has to be compiled is logged (logger `tpu_perf.cache`): its
    key, what differed from the nearest one, the user's line and its StableHLO."""
    CACHE.dump_on_miss = enable


def _get_dump_on_cache_miss() -> bool:
    return CACHE.dump_on_miss


def _set_host_cache(where: bool | str = True) -> None:
    """Share compiled programs with the other processes of this host: in shared memory, in a
    directory, or (False) not. Not in TorchTPU, which decides by the number of processes."""
    CACHE.use_host(where)


def _set_directory_cache(location: str | None, max_bytes: int | None = None) -> None:
    """Keep compiled programs in a directory or behind an fsspec URL, in `max_bytes` at most."""
    CACHE.use_directory(location, max_bytes)


class _LoadedModule(DeviceModule):
    """torch.tpu, with `eager_mode` as a property."""

    _initialized = True

    @staticmethod
    def is_initialized() -> bool:
        return True

    @property
    def eager_mode(self) -> EagerMode:
        return STATE.mode


def install(module: DeviceModule) -> None:
    """Give torch.tpu its names: everything in this file that is meant for users or for torch."""
    here = sys.modules[__name__]
    for name, value in vars(here).items():
        if not name.startswith("__") and name not in ("install", "annotations"):
            setattr(module, name, value)
    module.EagerMode = EagerMode  # type: ignore[attr-defined]
    module.default_generators = (DEFAULT_GENERATOR,)  # type: ignore[attr-defined]
    module._mode_set_to = mode_set_to  # type: ignore[attr-defined]
    module.__doc__ = __doc__
    module.__class__ = _LoadedModule
