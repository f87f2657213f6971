"""Kernels written by hand: allocation, aliases, copies between devices, reading a value."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from tpu_perf.recorder import active
from tpu_perf.recorder.packing import dispatch_event, name_number
from tpu_perf.runtime.buffers import (
    Buffer,
    Spec,
    allocate,
    buffer_of,
    contiguous_strides,
    storage_order_shape,
)
from tpu_perf.runtime.modes import STATE, EagerMode
from tpu_perf.runtime.torch_private import (
    META_KEYS,
    alias,
    as_strided_alias,
    create_empty_tensor,
    new_storage,
    offset_of,
    set_storage,
    storage_of,
    tensor_over,
    view_alias,
)
from tpu_perf.runtime.transfers import to_device, to_host

BY_HAND: dict[str, Callable[..., Any]] = {}
Kernel = TypeVar("Kernel", bound=Callable[..., Any])
Tensor = torch.Tensor
aten = torch.ops.aten
_clock = time.perf_counter_ns


def by_hand_in(
    kernels: dict[str, Callable[..., Any]],
) -> Callable[..., Callable[[Kernel], Kernel]]:
    """A decorator that puts a kernel among `kernels` under the dispatcher's names of overloads."""

    def by_hand(*names: str) -> Callable[[Kernel], Kernel]:
        def register(function: Kernel) -> Kernel:
            for name in names:
                kernels[name] = function
            return function

        return register

    return by_hand


by_hand = by_hand_in(BY_HAND)


@by_hand("empty.memory_format")
def empty(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    if layout not in (None, torch.strided):
        raise NotImplementedError(
            f"device tpu has no {layout} tensors; use a dense tensor (.to_dense())"
        )
    shape = tuple(int(s) for s in size)
    dtype = dtype or torch.get_default_dtype()
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        meta = torch.empty(shape, dtype=dtype, device="meta", memory_format=memory_format)
        return allocate(shape, dtype, tuple(meta.stride()))
    return allocate(shape, dtype)


@by_hand("empty_strided")
def empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None,
) -> Tensor:  # fmt: skip
    return allocate(
        tuple(int(s) for s in size), dtype or torch.get_default_dtype(),
        tuple(int(s) for s in stride),
    )  # fmt: skip


@by_hand("as_strided")
def as_strided(self: Tensor, size: Any, stride: Any, storage_offset: Any = None) -> Tensor:
    offset = _offset_within(self, size, stride, storage_offset)
    return as_strided_alias(META_KEYS, self, size, stride, offset)  # type: ignore[no-any-return]


@by_hand("as_strided_copy")
def as_strided_copy(self: Tensor, size: Any, stride: Any, storage_offset: Any = None) -> Tensor:
    seen: Tensor = aten.as_strided(self, size, stride, storage_offset)
    return seen.clone(memory_format=torch.contiguous_format)


@by_hand("as_strided_")
def as_strided_(self: Tensor, size: Any, stride: Any, storage_offset: Any = None) -> Tensor:
    """In place: what transpose_, squeeze_ and their like come down to."""
    offset = _offset_within(self, size, stride, storage_offset)
    return set_storage(self, storage_of(self), offset, size, stride)


def _offset_within(self: Tensor, size: Any, stride: Any, storage_offset: Any) -> int:
    """The offset of a geometry. Raises RuntimeError if it reaches beyond the storage."""
    offset: int = offset_of(self) if storage_offset is None else storage_offset
    try:
        spec = storage_of(self)._buffer.spec  # type: ignore[attr-defined]
    except AttributeError:
        spec = buffer_of(self).spec
    reach = offset
    for n, s in zip(size, stride, strict=True):
        reach += (n - 1) * s
    if reach >= spec.numel and not spec.reinterpreted and 0 not in size:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset} are "
            f"out of bounds for storage of size {spec.nbytes}"
        )
    return offset


@by_hand("view")
def view(self: Tensor, size: Any) -> Tensor:
    return view_alias(META_KEYS, self, size)  # type: ignore[no-any-return]


@by_hand("_reshape_alias")
def reshape_alias(self: Tensor, size: Any, stride: Any) -> Tensor:
    return alias(self, size, stride, offset_of(self))


@by_hand("view.dtype")
def view_dtype(self: Tensor, dtype: torch.dtype) -> Tensor:
    meta = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device="meta")
    seen = meta.view(dtype)
    ratio_offset = offset_of(self) * self.element_size() // seen.element_size()
    return _reinterpreted(self, dtype, seen.shape, seen.stride(), ratio_offset)


@by_hand("view_as_real")
def view_as_real(self: Tensor) -> Tensor:
    if self.is_conj():
        raise RuntimeError(
            "view_as_real doesn't work on unresolved conjugated tensors.  To resolve the conjugate "
            "tensor so you can view it as real, use self.resolve_conj(); however, be warned that "
            "the resulting tensor will NOT alias the original."
        )
    real = {torch.complex64: torch.float32, torch.complex128: torch.float64}[self.dtype]
    stride = [s * 2 for s in self.stride()] + [1]
    return _reinterpreted(self, real, [*self.shape, 2], stride, offset_of(self) * 2)


@by_hand("view_as_complex")
def view_as_complex(self: Tensor) -> Tensor:
    if self.shape[-1:] != (2,) or self.stride(-1) != 1:
        raise RuntimeError("Tensor must have a last dimension of size 2 and stride 1")
    kinds = {torch.float32: torch.complex64, torch.float64: torch.complex128}
    kind = kinds.get(self.dtype)
    if kind is None:
        raise TypeError(f"view_as_complex: XLA has no complex numbers of {self.dtype} parts; make "
                        "them .float() first")  # fmt: skip
    stride = [s // 2 for s in self.stride()[:-1]]
    return _reinterpreted(self, kind, self.shape[:-1], stride, offset_of(self) // 2)


def _reinterpreted(self: Tensor, dtype: torch.dtype, size: Any, stride: Any, offset: int) -> Tensor:
    """An alias of another dtype: from now on every reader looks at tensors' own dtypes."""
    buffer = buffer_of(self)
    buffer.ready("unknown")
    buffer.spec = Spec.of(buffer.spec.shape, buffer.spec.dtype, reinterpreted=True)
    return tensor_over(storage_of(self), dtype, size, stride, offset)


@by_hand("unfold")
def unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    meta = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device="meta")
    seen = meta.unfold(dimension, size, step)
    return alias(self, seen.shape, seen.stride(), offset_of(self))


def table_kernel(name: str) -> Callable[..., Any]:
    """The table-driven kernel of an overload, made on first use."""
    found = _kernels.get(name)
    if found is None:
        from tpu_perf.runtime.dispatch import kernel_for

        base, _, overload = name.partition(".")
        found = _kernels[name] = kernel_for(getattr(getattr(aten, base), overload or "default"))
    return found


_kernels: dict[str, Callable[..., Any]] = {}


_CLONE = name_number("aten::clone.default")
_KEEPS_LAYOUT = (None, torch.preserve_format, torch.contiguous_format)


@by_hand("clone")
def clone(self: Tensor, *, memory_format: Any = None) -> Tensor:
    """A copy. In Strict that of a whole contiguous tensor shares its array until either is
    written; memory statistics count it as if it were copied already. Segments record the op, as
    a whole step must."""
    if STATE.mode is EagerMode.DEFER_NEVER and memory_format in _KEEPS_LAYOUT:
        recorder = active.recorder
        start = _clock() if recorder is not None else 0
        buffer: Buffer | None = getattr(storage_of(self), "_buffer", None)
        array = None if buffer is None or buffer.segment is not None else buffer.array
        if buffer is not None and array is not None:
            spec = buffer.spec
            whole = self.shape == spec.shape and self.stride() == spec.strides
            if whole and not spec.may_be_turned:
                made: Tensor = create_empty_tensor(spec.shape, spec.dtype)
                copied = Buffer(array, spec)
                copied.shared = buffer.shared = True
                storage_of(made)._buffer = copied  # type: ignore[attr-defined]
                if recorder is not None:
                    recorder.dispatch(dispatch_event(start, _clock(), _CLONE, -1, recorder.step))
                return made
    return table_kernel("clone")(self, memory_format=memory_format)  # type: ignore[no-any-return]


@by_hand("copy_")
def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    here, there = self.device.type == "tpu", src.device.type == "tpu"
    if here and there:
        if self is not src:
            table_kernel("copy_")(self, src, non_blocking)
        return self
    return _copy_across(src, self)


@by_hand("_to_copy")
def to_copy(
    self: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, non_blocking: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    here = self.device.type == "tpu"
    if here and (device is None or device.type == "tpu"):
        return table_kernel("_to_copy")(self, dtype=dtype, memory_format=memory_format)  # type: ignore[no-any-return]
    if here:
        host = to_host(self)
        host = host if dtype is None else host.to(dtype)
        if memory_format in (None, torch.preserve_format):
            if self.is_contiguous():
                return host
            meta = torch.empty_strided(self.shape, self.stride(), dtype=host.dtype, device="meta")
            return torch.empty_like(meta, device="cpu").copy_(host)
        return host.contiguous(memory_format=memory_format)
    host = self if dtype is None else self.to(dtype)
    keep = memory_format in (None, torch.preserve_format)
    like = torch.empty_like(host, device="meta", memory_format=torch.preserve_format
                            if keep else memory_format)  # fmt: skip
    return _copy_across(host, allocate(tuple(like.shape), like.dtype, tuple(like.stride())))


@by_hand("_copy_from")
def copy_from(self: Tensor, dst: Tensor, non_blocking: bool = False) -> Tensor:
    return copy_(dst, self, non_blocking)


@by_hand("_copy_from_and_resize")
def copy_from_and_resize(self: Tensor, dst: Tensor) -> Tensor:
    dst.resize_(self.shape)
    return copy_(dst, self)


def _copy_across(src: Tensor, dst: Tensor) -> Tensor:
    """Between host and device. Conversion and broadcasting happen on the host side of an upload
    and the device side of nothing else."""
    if dst.device.type != "tpu":
        host = to_host(src)
        dst.copy_(host)
        return dst
    if STATE.capturing:
        from tpu_perf.runtime.whole_step import note_upload

        note_upload(src, dst)
    host = src.detach()
    if host.dtype != dst.dtype:
        host = host.to(dst.dtype)
    if host.shape != dst.shape:
        host = host.expand(dst.shape)
    buffer = buffer_of(dst)
    spec = buffer.spec
    shape = tuple(dst.shape)
    whole = spec.dtype is dst.dtype and spec.numel == dst.numel() and offset_of(dst) == 0
    if whole and dst.is_contiguous() and shape == spec.shape:
        _replace(buffer, host)
    elif whole and storage_order_shape(shape, tuple(dst.stride())) == spec.shape:
        order = sorted(range(len(shape)), key=lambda i: (-dst.stride()[i], -shape[i]))
        _replace(buffer, host.permute(order))
    else:
        staged = allocate(shape, dst.dtype)
        _replace(buffer_of(staged), host)
        table_kernel("copy_")(dst, staged, False)
    return dst


def _replace(buffer: Buffer, host: Tensor) -> None:
    if buffer.segment is not None:
        buffer.segment.flush("unknown")
    array = to_device(host)
    buffer.segment = None
    buffer.fill(array)


@by_hand("_local_scalar_dense")
def local_scalar_dense(self: Tensor) -> Any:
    return to_host(self, "item()").item()


@by_hand("set_.source_Storage_storage_offset")
def set_storage_offset(
    self: Tensor, source: Any, storage_offset: Any, size: Any, stride: Any = ()
) -> Tensor:
    from tpu_perf.runtime import storages

    stride = stride or contiguous_strides(tuple(size))
    return storages.point(self, source, storage_offset, size, stride)


@by_hand("set_.source_Storage")
def set_whole_storage(self: Tensor, source: Any) -> Tensor:
    from tpu_perf.runtime import storages

    count = source.nbytes() // self.element_size()
    return storages.point(self, source, 0, (count,), (1,))


@by_hand("set_.source_Tensor")
def set_tensor(self: Tensor, source: Tensor) -> Tensor:
    buffer_of(source)
    return set_storage(self, storage_of(source), offset_of(source), source.shape, source.stride())


@by_hand("set_")
def set_empty(self: Tensor) -> Tensor:
    storage = new_storage()
    storage._buffer = Buffer(None, Spec.of((0,), self.dtype))  # type: ignore[attr-defined]
    return set_storage(self, storage, 0, (0,), (1,))


@by_hand("is_set_to")
def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    return (
        storage_of(self)._cdata == storage_of(tensor)._cdata
        and (self.shape, self.stride()) == (tensor.shape, tensor.stride())
        and offset_of(self) == offset_of(tensor)
    )


@by_hand("resize_")
def resize_(self: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    from tpu_perf.runtime import storages

    shape = tuple(int(s) for s in size)
    if shape == tuple(self.shape) and memory_format is None:
        return self
    stride = contiguous_strides(shape)
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        stride = torch.empty(shape, device="meta", memory_format=memory_format).stride()
    storages.resize_tensor(self, shape, stride)
    return self


@by_hand("is_pinned")
def is_pinned(self: Tensor, device: Any = None) -> bool:
    return False


@by_hand("_nested_tensor_from_mask_left_aligned")
def nested_tensor_from_mask_left_aligned(t: Tensor, mask: Tensor) -> bool:
    """Whether nn.TransformerEncoder may pack its input as a nested tensor: the device has none,
    and computes on the padded one."""
    return False


@by_hand("_has_compatible_shallow_copy_type")
def has_compatible_type(self: Tensor, other: Tensor) -> bool:
    """Let `parameter.data = on_device` keep the Parameter object, as with CPU and CUDA, so that
    module.to("tpu") does not untie tied weights."""
    return {self.device.type, other.device.type} <= {"cpu", "tpu"}


@by_hand("record_stream")
def record_stream(self: Tensor, stream: Any) -> None:
    return None


@by_hand("equal")
def equal(self: Tensor, other: Tensor) -> bool:
    if self.shape != other.shape:
        return False
    return bool(torch.eq(self, other).all().item())
