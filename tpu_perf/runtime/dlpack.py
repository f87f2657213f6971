"""torch's DLPack functions, for device "tpu" too; torch's own would hand out a null pointer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def install() -> None:
    """Put functions that know the device in the place of torch's."""
    export = torch.Tensor.__dlpack__
    location = torch.Tensor.__dlpack_device__
    make_capsule: Callable[..., Any] = torch._C._to_dlpack
    receive: Callable[..., Any] = torch.utils.dlpack.from_dlpack

    def __dlpack__(self: torch.Tensor, **options: Any) -> Any:
        if self.device.type != "tpu":
            return export(self, **options)
        from tpu_perf.runtime.exchange import exported

        options.pop("stream", None)
        return exported(self).__dlpack__(**options)

    def __dlpack_device__(self: torch.Tensor) -> Any:
        if self.device.type != "tpu":
            return location(self)
        from tpu_perf.runtime.exchange import to_jax

        array: Any = to_jax(self.detach())
        return array.__dlpack_device__()

    def to_dlpack(tensor: torch.Tensor) -> Any:
        return tensor.__dlpack__() if tensor.device.type == "tpu" else make_capsule(tensor)

    def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Any:
        if device is None or torch.device(device).type != "tpu":
            return receive(ext_tensor, device=device, copy=copy)
        from tpu_perf.runtime.exchange import received

        return received(ext_tensor, copy)

    for ours, theirs in ((to_dlpack, make_capsule), (from_dlpack, receive)):
        ours.__doc__ = theirs.__doc__
        for module in (torch, torch.utils.dlpack):
            setattr(module, ours.__name__, ours)
    torch.Tensor.__dlpack__ = __dlpack__  # type: ignore[method-assign]
    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]
