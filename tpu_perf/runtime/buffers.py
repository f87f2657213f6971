"""A buffer: what a storage on device "tpu" holds, and how tensors are made over it."""

from __future__ import annotations

import math
import time
from typing import Protocol

import jax
import torch

from tpu_perf.recorder import active
from tpu_perf.recorder.packing import memory_event
from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.memory import MEMORY
from tpu_perf.runtime.torch_private import (
    create_empty_tensor,
    new_storage,
    storage_of,
    tensor_over,
)

Shape = tuple[int, ...]
_clock = time.perf_counter_ns


def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides in elements, as torch gives them (sizes of 0 count as 1)."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)


class Spec:
    """Shape (in storage order) and dtype of a buffer. One object per distinct spec, so that keys
    compare by identity.

    `reinterpreted` specs belong to buffers that some tensor views under another dtype; calls on
    them take the slow path, which looks at every tensor's own dtype.
    """

    __slots__ = (
        "dtype",
        "may_be_turned",
        "nbytes",
        "numel",
        "reinterpreted",
        "shape",
        "strides",
    )
    _known: dict[tuple[Shape, torch.dtype, bool], Spec] = {}  # noqa: RUF012

    shape: Shape
    dtype: torch.dtype
    strides: Shape
    numel: int
    nbytes: int
    reinterpreted: bool
    #: Whether a tensor over the buffer can have torch's conjugate or negative bit set.
    may_be_turned: bool

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}" + (
            "*" if self.reinterpreted else ""
        )

    @classmethod
    def of(cls, shape: Shape, dtype: torch.dtype, reinterpreted: bool = False) -> Spec:
        key = (shape, dtype, reinterpreted)
        spec = cls._known.get(key)
        if spec is None:
            spec = cls.__new__(cls)
            spec.shape = shape
            spec.dtype = dtype
            spec.strides = contiguous_strides(shape)
            spec.numel = math.prod(shape)
            spec.nbytes = spec.numel * numpy_dtype(dtype).itemsize
            spec.reinterpreted = reinterpreted
            spec.may_be_turned = reinterpreted or dtype.is_complex
            spec = cls._known.setdefault(key, spec)
        return spec


class Pending(Protocol):
    """What can still produce a buffer's value: a deferred segment, or a pack of small state."""

    def flush(self, reason: str) -> None: ...


class Buffer:
    """The value behind a storage.

    `array` has the spec's shape; it is None while the value is still to be computed by
    `segment` (then `value` is its index there) or was never written. `shared` arrays are also
    held elsewhere and must not be donated.
    """

    __slots__ = ("array", "counted", "segment", "shared", "spec", "value")

    def __init__(self, array: jax.Array | None, spec: Spec) -> None:
        self.array = array
        self.spec = spec
        self.segment: Pending | None = None
        self.value = -1
        self.shared = False
        if array is None:
            self.counted = 0
        else:
            # MEMORY.allocate, written out: this runs for every op.
            self.counted = nbytes = spec.nbytes
            MEMORY.allocated = live = MEMORY.allocated + nbytes
            MEMORY.allocations += 1
            if live > MEMORY.peak:
                MEMORY.peak = live
            recorder = active.recorder
            if recorder is not None:
                recorder.memory(memory_event(_clock(), nbytes, live, recorder.step, id(self)))

    def fill(self, array: jax.Array) -> None:
        """Give the buffer its (new) array."""
        self.array = array
        self.shared = False
        if not self.counted and self.spec.nbytes:
            self.counted = self.spec.nbytes
            MEMORY.allocate(self.counted, id(self))

    def release(self) -> None:
        """Give the array up."""
        self.array = None
        self.shared = False
        if self.counted:
            MEMORY.release(self.counted, id(self))
            self.counted = 0

    def ready(self, reason: str = "unknown") -> jax.Array:
        """The array; runs the pending segment first, or stands in zeros for unwritten memory."""
        pending = self.segment
        if pending is not None:
            pending.flush(reason)
        if self.array is None:
            self.fill(unwritten(self.spec))
            self.shared = True
        assert self.array is not None
        return self.array

    def __del__(self) -> None:
        nbytes = self.counted
        if nbytes:
            MEMORY.allocated = live = MEMORY.allocated - nbytes
            MEMORY.releases += 1
            recorder = active.recorder
            if recorder is not None:
                recorder.memory(memory_event(_clock(), -nbytes, live, recorder.step, id(self)))


_unwritten: dict[Spec, jax.Array] = {}


def unwritten(spec: Spec) -> jax.Array:
    """What uninitialised memory reads as: zeros, one shared array per spec, never donated."""
    array = _unwritten.get(spec)
    if array is None:
        import numpy as np

        from tpu_perf.runtime import jax_private

        array = jax_private.put(np.zeros(spec.shape, numpy_dtype(spec.dtype)))
        if spec.nbytes <= 1 << 16:
            _unwritten[spec] = array
    return array


def buffer_of(tensor: torch.Tensor) -> Buffer:
    """The buffer behind a device tensor.

    Raises RuntimeError for tensors whose storage is not ours (made by a path that bypassed the
    device, such as torch.UntypedStorage(n, device="tpu")).
    """
    storage = storage_of(tensor)
    found: Buffer | None = getattr(storage, "_buffer", None)
    if found is not None:
        return found
    if tensor.device.type != "tpu":
        raise RuntimeError(
            f"expected all tensors on device tpu, but found one of shape {list(tensor.shape)} on "
            f"{tensor.device}; move it with .to('tpu')"
        )
    itemsize = tensor.element_size()
    count = max(storage.nbytes() // itemsize, _extent(tensor))
    buffer = Buffer(None, Spec.of((count,), tensor.dtype))
    storage._buffer = buffer  # type: ignore[attr-defined]
    return buffer


def _extent(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + reach + 1)


def wrap(array: jax.Array | None, spec: Spec) -> torch.Tensor:
    """A fresh contiguous tensor over a fresh buffer."""
    tensor: torch.Tensor = create_empty_tensor(spec.shape, spec.dtype)
    storage_of(tensor)._buffer = Buffer(array, spec)  # type: ignore[attr-defined]
    return tensor


def allocate(shape: Shape, dtype: torch.dtype, stride: Shape | None = None) -> torch.Tensor:
    """A tensor the user allocates: its storage reports its size and an address of its own."""
    spec_shape = shape
    if stride is not None and stride != contiguous_strides(shape):
        spec_shape = storage_order_shape(shape, stride)
    spec = Spec.of(spec_shape, dtype)
    storage = new_storage()
    storage._buffer = Buffer(None, spec)  # type: ignore[attr-defined]
    return tensor_over(storage, dtype, shape, stride or spec.strides)


def storage_order_shape(shape: Shape, stride: Shape) -> Shape:
    """Shape of the array behind a tensor of this geometry: its axes in storage order where the
    geometry is dense, else one flat axis long enough to hold every element."""
    order = sorted(range(len(shape)), key=lambda i: (-stride[i], -shape[i]))
    permuted = tuple(shape[i] for i in order)
    if tuple(stride[i] for i in order) == contiguous_strides(permuted) or 0 in shape:
        return permuted
    if math.prod(shape) == 0:
        return (0,)
    return (1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)),)
