"""All private PyTorch API that the device needs, in one place (tested with torch 2.13.0).

An upgrade of torch is a change of this file. Names used: `torch._C._acc` (Python backends for
PrivateUse1), `_setup_privateuseone_for_python_backend`, redispatch to the Meta and CPU keys,
attributes on UntypedStorage (kept alive with the storage by PyObject preservation).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import backend_registration

from tpu_perf.errors import EnvironmentProblem

DEVICE_TYPE = "tpu"
META_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

create_empty_tensor = torch._C._acc.create_empty_tensor
storage_of = torch.Tensor.untyped_storage

# The Meta kernel of as_strided makes an alias without checking bounds against the storage's
# byte count, which is 0 for tensors made by `create_empty_tensor`. Bounds are checked by us.
as_strided_alias = torch.ops.aten.as_strided.default.redispatch
view_alias = torch.ops.aten.view.default.redispatch
#: The way to torch's generated derivative of linear and on to our kernel. The derivative stands
#: under the key of the one backend of torch's that takes linear whole.
WHOLE_AUTOGRAD_KEYS = torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutogradNestedTensor
) | torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
redispatch_linear = torch.ops.aten.linear.default.redispatch
#: How many TorchDispatchModes are in force on this thread.
dispatch_modes = torch._C._len_torch_dispatch_stack

#: Whether torch.nn.attention.sdpa_kernel leaves any kernel but the composition of ops.
fused_attention_allowed: tuple[Callable[[], bool], ...] = (
    torch._C._get_flash_sdp_enabled,
    torch._C._get_mem_efficient_sdp_enabled,
    torch._C._get_overrideable_sdp_enabled,
)

_set_storage = torch.ops.aten.set_.source_Storage_storage_offset.redispatch

#: storage_offset() is typed as int or SymInt; device tensors have no symbols.
offset_of: Callable[[torch.Tensor], int] = torch.Tensor.storage_offset  # type: ignore[assignment]

#: Where the next storage seems to lie whose address someone asks for.
_next_address = 1 << 40


def alias(tensor: torch.Tensor, size: Any, stride: Any, storage_offset: int) -> torch.Tensor:
    """A tensor over the same storage with the given geometry (elements), unchecked."""
    return cast(torch.Tensor, as_strided_alias(META_KEYS, tensor, size, stride, storage_offset))


def new_address(nbytes: int) -> int:
    """An address for so many bytes, which no other storage has."""
    global _next_address
    address = _next_address
    _next_address += max(64, (nbytes + 63) // 64 * 64)
    return address


def new_storage() -> torch.UntypedStorage:
    """A storage on the device without memory behind it. Its size in torch's books is 0, and is
    raised when a tensor is put over it."""
    return storage_of(create_empty_tensor((0,), torch.uint8))


def set_storage(
    tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int, size: Any, stride: Any
) -> torch.Tensor:
    """Point `tensor` at `storage` with the given geometry, in place. The Meta kernel raises the
    storage's size in torch's books where it is too small (an op's output has size 0 there)."""
    return cast(torch.Tensor, _set_storage(META_KEYS, tensor, storage, offset, size, stride))


def tensor_over(
    storage: torch.UntypedStorage, dtype: torch.dtype, size: Any, stride: Any, offset: int = 0
) -> torch.Tensor:
    """A new tensor over a storage of ours."""
    return set_storage(create_empty_tensor((0,), dtype), storage, offset, size, stride)


class _Hook(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Lost(threading.local):
    error: BaseException | None = None


_lost = _Lost()
#: Raises the error that C++ code on this thread is unwinding for, if any (as ctypes documents).
_raise_pending = ctypes.pythonapi.PyErr_Occurred
_raise_pending.restype = ctypes.c_void_p
PRIVATEUSE1 = torch._C._autograd.DeviceType.PrivateUse1


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        # The autograd engine asks while it unwinds too, where a Python function that returns
        # with an error pending would end the process. The error is then kept here, and the
        # engine fails without one.
        try:
            _raise_pending()
        except BaseException as error:
            _lost.error = error
        return PRIVATEUSE1


class _Engine(torch._C._ImperativeEngine):
    """Torch's autograd engine; an error that the guard has kept is raised as what it was."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:
            error, _lost.error = _lost.error, None
            if error is None:
                raise
            raise error from None


def keep_errors_of_backward() -> None:
    """Let errors of ops on fake tensors leave a backward pass that is traced."""
    torch.autograd.Variable._execution_engine = _Engine()


def print_from_host() -> None:
    """Let repr read a tensor once: torch would read every element by an op of its own."""
    from torch import _tensor_str

    on_host: Any = _tensor_str._tensor_str

    def read_once(tensor: torch.Tensor, indent: int) -> str:
        if tensor.device.type == DEVICE_TYPE:
            tensor = tensor.detach().cpu()
        return str(on_host(tensor, indent))

    _tensor_str._tensor_str = read_once


def check_privateuse1_is_free() -> None:
    """Raise if another backend holds PrivateUse1: torch has room for one per process."""
    name = torch._C._get_privateuse1_backend_name()
    if name == "privateuseone":
        return
    if name == DEVICE_TYPE and getattr(torch, DEVICE_TYPE, None) is None:
        return
    owner = getattr(getattr(torch, name, None), "__name__", name)
    raise EnvironmentProblem(
        f"another PyTorch backend is already loaded as device {name!r} (module {owner}), and "
        "PyTorch has room for one such backend in a process",
        hint="keep it out of this process: start Python with TORCH_DEVICE_BACKEND_AUTOLOAD=0, "
        "and do not import its package (torch_tpu, for example) before tpu_perf.runtime",
    )


def register_backend(module: Any) -> None:
    """Make PrivateUse1 the device "tpu" with `module` as torch.tpu."""
    check_privateuse1_is_free()
    backend_registration._setup_privateuseone_for_python_backend(
        DEVICE_TYPE, backend_module=module, hook=_Hook(), device_guard=_Guard()
    )
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=False, for_module=False, for_packed_sequence=False, for_storage=True
    )


#: Libraries unregister their kernels when collected.
_lazy_library: list[torch.library.Library] = []


def load_at_first_op(load: Callable[[], None]) -> None:
    """Until the kernels are there, an op on the device calls `load` and is then run. Factory
    functions load earlier, through torch's own lazy initialisation; torch.ops do not."""

    def fall_back(op: Any, *args: Any, **kwargs: Any) -> Any:
        load()
        return op(*args, **kwargs)

    library = torch.library.Library("_", "IMPL")
    library.fallback(fall_back, "PrivateUse1")
    _lazy_library.append(library)


def end_of_lazy_loading() -> None:
    """Make room for the device's own boxed fallback."""
    _lazy_library.clear()


class _Layouts(threading.local):
    as_on_cpu = False


_layouts = _Layouts()


def lay_out_metas_as_asked() -> None:
    """Let `layouts_as_on_cpu` decide what torch's meta kernels take a plain meta tensor for. They
    take it for one of CUDA, where transforms and decompositions have other strides."""
    from torch import _meta_registrations

    before = _meta_registrations.device_hint

    def device_hint(tensor: Any) -> str:
        if _layouts.as_on_cpu and not isinstance(tensor, FakeTensor):
            return "cpu"
        return before(tensor)

    _meta_registrations.device_hint = device_hint


def correct_fakes(op: torch._ops.OpOverload, correct: Callable[..., Any]) -> None:
    """Let `correct(made, *args, **kwargs)` give the results that an op has when it is traced for
    the device, from those that torch thinks of."""
    from torch._subclasses.fake_impls import op_implementations_dict

    before = op_implementations_dict[op]

    def fake(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        made = before(fake_mode, func, *args, **kwargs)
        tensors = [a for a in args if isinstance(a, FakeTensor)]
        if not tensors or tensors[0].fake_device.type != DEVICE_TYPE:
            return made
        with fake_mode:
            return correct(made, *args, **kwargs)

    op_implementations_dict[op] = fake


@contextmanager
def layouts_as_on_cpu() -> Iterator[None]:
    """Inside, meta kernels give results the strides that they have on the CPU."""
    before, _layouts.as_on_cpu = _layouts.as_on_cpu, True
    try:
        yield
    finally:
        _layouts.as_on_cpu = before


def run_backward_on_calling_thread() -> None:
    """Let this thread run backward itself: deferred segments then span forward and backward, and
    no time goes into handing the interpreter lock between two threads."""
    torch._C._set_multithreading_enabled(False)


def graph_task() -> int:
    """Number of the backward pass that this thread is running, -1 if none."""
    return torch._C._current_graph_task_id()


def on_autograd_worker() -> bool:
    """Whether this thread belongs to the autograd engine, which runs a backward pass on it for
    another thread."""
    return graph_task() != -1 and torch._C._is_multithreading_enabled()


@contextmanager
def compiling_flag_set() -> Iterator[None]:
    """Inside, torch.compiler.is_compiling() is True, so that libraries take the path without
    reads of device values that they have for torch.compile."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


@contextmanager
def dynamo_looking_away() -> Iterator[None]:
    """Inside, no Python function is looked at by Dynamo. It watches this thread after a graph
    break, and would compile what makes our programs."""
    set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
    before = set_eval_frame(None)
    try:
        yield
    finally:
        set_eval_frame(before)


def graph_breaks_for_generators(kind: type[torch.Generator]) -> None:
    """Let Dynamo treat generators of this class as torch's own: what draws from one is left to
    eager. A subclass of torch's would count as an opaque object, of which torch has no fake."""
    from torch._library import opaque_object

    known = opaque_object._OPAQUE_TYPES[torch._C.Generator]
    opaque_object._OPAQUE_TYPES[kind] = replace(known, class_name=f"{kind.__name__} is not opaque")
