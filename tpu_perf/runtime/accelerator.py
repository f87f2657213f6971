"""torch.accelerator, torch.Generator, torch.Stream and torch.Event for device "tpu".

Torch asks a backend in C++ for these and has no way in from Python, so the functions that
torch.accelerator calls, and the three constructors, are replaced by ones that know the device.
For any other device they do what they did.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._opaque_base import OpaqueBaseMeta

from tpu_perf.runtime import streams
from tpu_perf.runtime.random_numbers import TpuGenerator


def _device_type(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Type of the device that a constructor call names, or None if it names none."""
    device = kwargs.get("device", args[0] if args else None)
    if isinstance(device, (torch.device, str)):
        return torch.device(device).type
    if isinstance(device, int) and not isinstance(device, bool):
        return "tpu"  # torch reads a bare index as the accelerator's
    return None


class _ByDevice(OpaqueBaseMeta):
    """Calls go to the device's own class; isinstance and issubclass are those of torch's type."""

    original: type
    ours: type
    unnamed_is_ours: bool

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "ours" not in vars(cls):  # a subclass made elsewhere
            return super().__call__(*args, **kwargs)
        kind = _device_type(args, kwargs)
        if kind == "tpu" or (kind is None and cls.unnamed_is_ours):
            return cls.ours(*args, **kwargs)
        return cls.original(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        if "ours" in vars(cls):
            return isinstance(instance, cls.original)
        return bool(super().__instancecheck__(instance))  # type: ignore[no-untyped-call]

    def __subclasscheck__(cls, subclass: type) -> bool:
        if "ours" in vars(cls):
            return issubclass(subclass, cls.original)
        return super().__subclasscheck__(subclass)


def _by_device(name: str, ours: type, *, unnamed_is_ours: bool) -> None:
    original = getattr(torch, name)
    namespace = {
        "original": original,
        "ours": ours,
        "unnamed_is_ours": unnamed_is_ours,
        "__doc__": original.__doc__,
        "__module__": "torch",
    }
    setattr(torch, name, _ByDevice(name, (original,), namespace))


def _memory() -> Any:
    from tpu_perf.runtime.memory import MEMORY

    return MEMORY


def _module() -> Any:
    return torch.tpu  # type: ignore[attr-defined]


def _check_index(index: int) -> None:
    if index not in (0, -1):
        raise RuntimeError(
            f"tpu device {index} does not exist: this process has {_module().device_count()}"
        )


def _exchange(index: int) -> int:
    _check_index(index)
    return 0


def _get_stream(index: int) -> Any:
    _check_index(index)
    return streams.current()


def _synchronize(index: int) -> None:
    _check_index(index)
    _module().synchronize()


def _capability(index: int) -> dict[str, Any]:
    from tpu_perf.runtime.dtypes import supported_dtypes

    _check_index(index)
    return {"supported_dtypes": set(supported_dtypes())}


def _stats(index: int) -> dict[str, Any]:
    _check_index(index)
    return _memory().statistics()  # type: ignore[no-any-return]


def _reset_accumulated(index: int) -> None:
    _check_index(index)
    _memory().reset_accumulated()


def _reset_peak(index: int) -> None:
    _check_index(index)
    _memory().reset_peak()


def _memory_info(index: int) -> tuple[int, int]:
    _check_index(index)
    return _module().mem_get_info()  # type: ignore[no-any-return]


def _new_storage(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """torch.UntypedStorage(size or bytes, device="tpu"), which torch would make without memory."""
    if device is None or torch.device(device).type != "tpu":
        base: Any = torch._C.StorageBase
        return base.__new__(cls, *args, device=device, **kwargs)
    _module()._lazy_init()
    from tpu_perf.runtime import storages

    if args and not isinstance(args[0], int):
        host = torch.UntypedStorage(args[0])
        return storages.make(host.nbytes()).copy_(host)
    return storages.make(args[0] if args else kwargs.get("size", 0))


def install() -> None:
    """Put the device behind torch.accelerator and the constructors."""
    torch.UntypedStorage.__new__ = _new_storage  # type: ignore[method-assign]
    replaced = {
        "getDeviceIndex": lambda: 0,
        "setDeviceIndex": _check_index,
        "exchangeDevice": _exchange,
        "maybeExchangeDevice": _exchange,
        "getStream": _get_stream,
        "setStream": streams.set_current,
        "synchronizeDevice": _synchronize,
        "getDeviceCapability": _capability,
        "isAllocatorInitialized": lambda: _module().is_initialized(),
        "emptyCache": lambda: None,
        "emptyHostCache": lambda: None,
        "getDeviceStats": _stats,
        "resetAccumulatedStats": _reset_accumulated,
        "resetPeakStats": _reset_peak,
        "getMemoryInfo": _memory_info,
    }
    for name, function in replaced.items():
        setattr(torch._C, f"_accelerator_{name}", function)
    _by_device("Generator", TpuGenerator, unnamed_is_ours=False)
    _by_device("Stream", streams.Stream, unnamed_is_ours=True)
    _by_device("Event", streams.Event, unnamed_is_ours=True)
