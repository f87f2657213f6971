"""torch.UntypedStorage on device "tpu": sizes, addresses, copies and resizing over buffers.

Torch's own methods look at bytes and pointers that this device does not have, so the methods of
the Python class are replaced by ones that ask the buffer. An address tells storages apart, as
code that looks for shared memory needs; there is nothing to read behind it.

A storage made on its own (torch.load makes them) is raw: bytes whose dtype the first tensor over
them decides. Until then bytes from the host stay on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tpu_perf.runtime.buffers import (
    Buffer,
    Spec,
    buffer_of,
    contiguous_strides,
    storage_order_shape,
)
from tpu_perf.runtime.torch_private import (
    new_address,
    new_storage,
    offset_of,
    set_storage,
    storage_of,
    tensor_over,
)
from tpu_perf.runtime.transfers import to_device, to_host

Storage = Any  # torch.UntypedStorage with our attributes
_Base: Any = torch._C.StorageBase


def make(nbytes: int) -> Storage:
    """A raw storage of so many bytes."""
    storage: Storage = new_storage()
    storage._buffer = Buffer(None, Spec.of((nbytes,), torch.uint8))
    storage._raw = True
    storage._host = None
    return storage


def adopt(storage: Storage, dtype: torch.dtype, size: Any, stride: Any, offset: int) -> None:
    """Prepare a storage for a tensor of this dtype and geometry over it."""
    buffer: Buffer = storage._buffer
    itemsize = dtype.itemsize
    if getattr(storage, "_raw", False) and buffer.spec.nbytes % itemsize == 0:
        count = buffer.spec.nbytes // itemsize
        shape = storage_order_shape(tuple(size), tuple(stride))
        spec = Spec.of(shape, dtype)
        buffer.spec = spec if not offset and spec.numel == count else Spec.of((count,), dtype)
        host, storage._host, storage._raw = storage._host, None, False
        if host is not None:
            values = torch.empty(0, dtype=dtype, device="cpu").set_(host)
            buffer.fill(to_device(values.reshape(buffer.spec.shape)))
    elif buffer.spec.dtype is not dtype and not buffer.spec.reinterpreted:
        _settle(storage)
        buffer.ready("unknown")
        buffer.spec = Spec.of(buffer.spec.shape, buffer.spec.dtype, reinterpreted=True)


def _settle(storage: Storage) -> None:
    """Make a raw storage an ordinary one of bytes."""
    if getattr(storage, "_raw", False):
        count = storage._buffer.spec.numel
        adopt(storage, torch.uint8, (count,), (1,), 0)


def point(
    tensor: torch.Tensor, storage: Storage, offset: int, size: Any, stride: Any
) -> torch.Tensor:
    """Tensor.set_: the storage grows if the geometry reaches beyond it."""
    size, stride = tuple(size), tuple(stride)
    if 0 not in size:
        reach = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if reach * tensor.element_size() > _nbytes(storage):
            resize(storage, reach * tensor.element_size())
    adopt(storage, tensor.dtype, size, stride, offset)
    return set_storage(tensor, storage, offset, size, stride)


def _flat(storage: Storage) -> torch.Tensor:
    """All of a storage as a 1-D tensor of its buffer's dtype."""
    _settle(storage)
    spec = storage._buffer.spec
    return tensor_over(storage, spec.dtype, (spec.numel,), (1,))


def _as_bytes(storage: Storage) -> torch.Tensor:
    """All of a storage as a 1-D uint8 tensor that writes reach it through."""
    count = storage._buffer.spec.nbytes
    adopt(storage, torch.uint8, (count,), (1,), 0)
    return tensor_over(storage, torch.uint8, (count,), (1,))


def resize(storage: Storage, nbytes: int) -> None:
    """Make a storage hold so many bytes; what was there stays, what is new reads as zeros."""
    buffer: Buffer = storage._buffer
    spec = buffer.spec
    count = -(-nbytes // spec.dtype.itemsize)
    if count == spec.numel:
        return
    if nbytes == 0:
        storage._address = 0
    _settle(storage)
    if buffer.segment is not None:
        buffer.segment.flush("unknown")
    kept = min(count, spec.numel)
    array = None
    if buffer.array is not None and kept:
        moved = torch.zeros(count, dtype=spec.dtype, device="tpu")
        moved[:kept].copy_(_flat(storage)[:kept])
        array = buffer_of(moved).ready("unknown")
        buffer_of(moved).shared = True
    buffer.release()
    buffer.spec = Spec.of((count,), spec.dtype, spec.reinterpreted)
    if array is not None:
        buffer.fill(array)
    if nbytes:
        _flat(storage)  # tells torch of the size


def resize_tensor(tensor: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Tensor.resize_: in place, over the same storage, which grows and never shrinks."""
    storage: Storage = storage_of(tensor)
    buffer = buffer_of(tensor)
    offset = offset_of(tensor)
    reach = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    needed = (offset + reach) * tensor.element_size()
    if needed > buffer.spec.nbytes:
        unwritten = buffer.array is None and buffer.segment is None
        if unwritten and not offset and stride == contiguous_strides(shape):
            buffer.spec = Spec.of(shape, tensor.dtype, buffer.spec.reinterpreted)
        else:
            resize(storage, needed)
    set_storage(tensor, storage, offset, shape, stride)


def _is_ours(storage: Storage) -> bool:
    return hasattr(storage, "_buffer") or (
        storage.device.type == "tpu" and _Base.nbytes(storage) == 0
    )


def _nbytes(storage: Storage) -> int:
    buffer = getattr(storage, "_buffer", None)
    return int(_Base.nbytes(storage) if buffer is None else buffer.spec.nbytes)


def _data_ptr(storage: Storage) -> int:
    buffer = getattr(storage, "_buffer", None)
    if buffer is None:
        return int(_Base.data_ptr(storage))
    if buffer.spec.nbytes == 0:
        return 0
    address = getattr(storage, "_address", 0)
    if not address:
        address = storage._address = new_address(buffer.spec.nbytes)
    return int(address)


def _to_host(storage: Storage) -> torch.UntypedStorage:
    host = getattr(storage, "_host", None)
    if host is not None:
        return host.clone()  # type: ignore[no-any-return]
    if _nbytes(storage) == 0:
        return torch.UntypedStorage(0)
    return to_host(_flat(storage)).untyped_storage()


def _clone(storage: Storage) -> Storage:
    """A copy that shares the array until either is written."""
    copied: Storage
    buffer: Buffer = storage._buffer
    if getattr(storage, "_raw", False):
        copied = make(buffer.spec.nbytes)
        copied._host = storage._host  # read only
        return copied
    copied = new_storage()
    array = None if buffer.array is None and buffer.segment is None else buffer.ready("unknown")
    copied._buffer = Buffer(array, buffer.spec)
    copied._buffer.shared = buffer.shared = True
    return copied


def _copy_(self: Storage, source: Storage, non_blocking: Any = None) -> Storage:
    source = getattr(source, "_untyped_storage", source)
    if _nbytes(self) != _nbytes(source):
        raise RuntimeError(
            f"size does not match, self was {_nbytes(self)} bytes but src was "
            f"{_nbytes(source)} bytes"
        )
    if _nbytes(self) == 0 or self is source:
        return self
    if not _is_ours(self):
        return _Base.copy_(self, _to_host(source))
    if not _is_ours(source):
        host = source.cpu().clone()
        if getattr(self, "_raw", False):
            self._host = host
        else:
            values = torch.empty(0, dtype=self._buffer.spec.dtype, device="cpu").set_(host)
            _flat(self).copy_(values)
        return self
    _settle(source)
    if getattr(self, "_raw", False):
        self._raw = False
        self._buffer.spec = source._buffer.spec
    if self._buffer.spec.dtype is source._buffer.spec.dtype:
        _flat(self).copy_(_flat(source))
    else:
        _as_bytes(self).copy_(_as_bytes(_clone(source)))
    return self


def _fill_(self: Storage, value: int) -> Storage:
    (_as_bytes(self) if value else _flat(self)).fill_(value)
    return self


def _get(self: Storage, index: Any) -> Any:
    if isinstance(index, slice):
        raise NotImplementedError(
            "a storage on device tpu cannot be sliced; slice a tensor over it, or storage.cpu()"
        )
    return _to_host(self)[index]


def _set(self: Storage, index: Any, value: int) -> None:
    _as_bytes(self)[index] = value


def _resize_(self: Storage, size: int) -> Storage:
    resize(self, int(size))
    return self


def _representation(self: Storage) -> str:
    return repr(_to_host(self)).replace("(device=cpu)", f"(device={self.device})")


def _read_file(self: Storage, *args: Any) -> Storage:
    host: Storage = torch.UntypedStorage(_nbytes(self))
    return _copy_(self, host._set_from_file(*args))


def _not_between_processes(self: Storage, *args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "a tensor on device tpu cannot be sent to another process; send tensor.cpu() and move it "
        "with .to('tpu') there"
    )


#: Methods of torch.UntypedStorage for storages of this device.
_METHODS: dict[str, Callable[..., Any]] = {
    "nbytes": _nbytes,
    "size": _nbytes,
    "__len__": _nbytes,
    "data_ptr": _data_ptr,
    "resizable": lambda self: True,
    "resize_": _resize_,
    "clone": _clone,
    "cpu": _to_host,
    "fill_": _fill_,
    "new": lambda self: make(0),
    "tolist": lambda self: _to_host(self).tolist(),
    "__iter__": lambda self: iter(_to_host(self)),
    "__getitem__": _get,
    "__setitem__": _set,
    "__repr__": _representation,
    "_set_from_file": _read_file,
    "_write_file": lambda self, *args: _to_host(self)._write_file(*args),
    "_share_fd_cpu_": _not_between_processes,
    "_share_filename_cpu_": _not_between_processes,
    "_share_cuda_": _not_between_processes,
}


def _method(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    original = getattr(torch.UntypedStorage, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_ours(self):
            return ours(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, getattr(original, "__doc__", None)
    return method


def install() -> None:
    """Teach torch.UntypedStorage and Tensor.data_ptr the device."""
    for name, ours in _METHODS.items():
        setattr(torch.UntypedStorage, name, _method(name, ours))
    original_copy = torch.UntypedStorage.copy_

    def copy_(self: Any, source: Any, non_blocking: Any = None) -> Any:
        inner = getattr(source, "_untyped_storage", source)
        if _is_ours(self) or _is_ours(inner):
            return _copy_(self, source, non_blocking)
        return original_copy(self, source, non_blocking)

    torch.UntypedStorage.copy_ = copy_  # type: ignore[method-assign]
    original_pointer = torch.Tensor.data_ptr

    def data_ptr(self: torch.Tensor) -> int:
        if self.device.type != "tpu":
            return original_pointer(self)
        storage: Storage = storage_of(self)
        if not hasattr(storage, "_buffer"):
            return original_pointer(self)
        if self.numel() == 0:
            return 0
        return _data_ptr(storage) + offset_of(self) * self.element_size()

    torch.Tensor.data_ptr = data_ptr  # type: ignore[method-assign, assignment]
