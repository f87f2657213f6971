"""`--device tpu`: a script that asks for `cuda` or `cpu` gets device "tpu".

What names a device in a call is changed on the way in: `torch.zeros(..., device="cuda")`,
`.to("cpu")`, `.cuda()`. Parameters and buffers of modules live on the device from the start, for
scripts that name no device at all. Other tensors without a device stay on the host, as data sets
should; one that meets a tensor on the device is moved there first, as the script's own
`.to(device)` would have done. A tensor's `.cpu()`, `.numpy()` and `.tolist()` still bring values
to the host; a module stays.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map_only

_FROM = ("cuda", "cpu")
#: Torch's own code names the device of a tensor that it has; it asks for nothing.
_TORCH = os.path.dirname(torch.__file__) + os.sep
_TPU = torch.device("tpu")
#: What brings a value to the host, by intent.
_TO_HOST = (torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.item)


class _Redirect(TorchFunctionMode):
    """Changes the devices in calls of torch functions."""

    def __init__(self) -> None:
        super().__init__()
        self._factories = _device_constructors()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _TO_HOST:
            if func is torch.Tensor.numpy and _on_tpu(args[0]):
                return func(args[0].cpu(), **kwargs)
            return func(*args, **kwargs)
        if func is torch.Tensor.cuda:
            return args[0].to(_TPU)
        asked = not sys._getframe(1).f_code.co_filename.startswith(_TORCH)
        if asked:
            kwargs = _with_device(kwargs)
        if func is torch.Tensor.to:
            args = tuple(_moved(value) for value in args) if asked else args
        elif func in self._factories:
            generator = kwargs.get("generator")
            on_host = generator is not None and generator.device.type == "cpu"
            if on_host and kwargs.get("device") == _TPU:
                # A host generator's numbers are the script's own: made there, then moved.
                return func(*args, **{**kwargs, "device": "cpu"}).to(_TPU)
        elif any(_on_tpu(value) for value in _tensors(args, kwargs)):
            args, kwargs = tree_map_only(torch.Tensor, _to_tpu, (args, kwargs))
        return func(*args, **kwargs)


def _with_device(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: _moved(value) if name == "device" else value for name, value in kwargs.items()}


def _outside(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """What torch.compile made, called without the redirection, which it would try to compile."""

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.overrides._get_current_function_mode_stack():
            return compiled(*args, **kwargs)
        if any(_on_tpu(value) for value in _tensors(args, kwargs)):
            args, kwargs = tree_map_only(torch.Tensor, _to_tpu, (args, kwargs))
        with torch.overrides._pop_mode_temporarily():
            return compiled(*args, **kwargs)

    return call


def _moved(value: Any) -> Any:
    """A device that is to be replaced, as device "tpu"; anything else as it is."""
    if isinstance(value, torch.device):
        return _TPU if value.type in _FROM else value
    if isinstance(value, str) and value.split(":")[0] in _FROM:
        return _TPU
    return value


def _on_tpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"


def _tensors(args: Any, kwargs: Any) -> Iterator[Any]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value


def _to_tpu(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor on the device. Numbers (0 dimensions) may stay, as torch allows, and so do
    parameters, which a model must move itself, or its optimizer would hold others."""
    stays = tensor.device.type != "cpu" or tensor.dim() == 0 or isinstance(
        tensor, torch.nn.Parameter
    )  # fmt: skip
    return tensor if stays else tensor.to(_TPU)


#: Of torch.cuda: the functions of the same name in torch.tpu stand in.
_SAME_NAME = (
    "synchronize", "manual_seed", "manual_seed_all", "seed", "seed_all", "initial_seed",
    "memory_allocated", "max_memory_allocated", "reset_peak_memory_stats", "memory_reserved",
    "max_memory_reserved", "memory_stats", "memory_summary", "mem_get_info", "empty_cache",
    "get_device_name", "get_device_properties", "is_bf16_supported", "current_stream",
    "default_stream", "set_stream", "stream", "Stream", "Event", "get_rng_state", "set_rng_state",
)  # fmt: skip


@contextmanager
def redirected() -> Iterator[None]:
    """Redirect this process while the block lasts."""
    from tpu_perf.runtime import device

    device.load()
    tpu: Any = torch.tpu  # type: ignore[attr-defined]
    autocast = torch.autocast.__init__
    module = torch.nn.Module
    module_to, parameter, buffer = module.to, module.register_parameter, module.register_buffer

    def register_parameter(self: Any, name: str, param: Any) -> None:
        if type(param) is torch.nn.Parameter and param.device.type == "cpu":
            param = torch.nn.Parameter(param.detach().to(_TPU), param.requires_grad)
        parameter(self, name, param)

    def register_buffer(self: Any, name: str, tensor: Any, persistent: bool = True) -> None:
        if type(tensor) is torch.Tensor and tensor.device.type == "cpu":
            tensor = tensor.to(_TPU)
        buffer(self, name, tensor, persistent)

    def autocast_on_tpu(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        autocast(self, "tpu" if device_type in _FROM else device_type, *args, **kwargs)

    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_capability": lambda device=None: (9, 0),
    }
    answers |= {name: getattr(tpu, name) for name in _SAME_NAME if hasattr(tpu, name)}
    dynamo = torch._dynamo.eval_frame._TorchDynamoContext
    compile_function = dynamo.__call__

    def compiled(self: Any, function: Any) -> Any:
        made = compile_function(self, function)
        return made if isinstance(made, torch.nn.Module) else _outside(made)

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        return module_to(self, *(_moved(value) for value in args), **_with_device(kwargs))

    of_modules: dict[str, Any] = {
        "to": to,
        "cpu": lambda self: self,
        "cuda": lambda self, device=None: module_to(self, _TPU),
        "register_parameter": register_parameter,
        "register_buffer": register_buffer,
    }
    with (
        mock.patch.multiple(torch.cuda, **answers),
        mock.patch.object(torch.autocast, "__init__", autocast_on_tpu),
        mock.patch.multiple(module, **of_modules),
        mock.patch.object(dynamo, "__call__", compiled),
        _Redirect(),
    ):
        yield
