"""How a strided tensor is read from, and written into, the array of its buffer inside a program.

A view (size, stride, offset) of a dense array is taken apart into digits of a mixed-radix number:
reshape to the radices, slice, transpose, broadcast. XLA turns that into no work or one copy. What
does not come apart this way (overlapping windows, diagonals) is a gather over an iota.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from tpu_perf.runtime.buffers import Shape, Spec, contiguous_strides
from tpu_perf.runtime.dtypes import numpy_dtype


@dataclass(frozen=True, slots=True)
class _Digits:
    """Radices of the reshaped base, the slice of each, and which view dim each belongs to."""

    radices: Shape
    starts: Shape
    lengths: Shape
    order: Shape  # transposition that puts digits into the order of the view's dims
    narrow: Shape  # the view's size with broadcast dims as 1


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """Geometry of one tensor over one spec, ready to read and write."""

    spec: Spec
    dtype: torch.dtype
    size: Shape
    stride: Shape
    offset: int
    digits: _Digits | None
    identity: bool
    conjugated: bool
    negated: bool

    @property
    def text(self) -> str:
        """Everything that decides how the view reads, for cache keys."""
        turned = f", conj {self.conjugated} neg {self.negated}" * (self.conjugated or self.negated)
        return f"{self.spec!r}, {self.dtype}, {self.size}, {self.stride}, {self.offset}{turned}"

    def read(self, base: jax.Array) -> jax.Array:
        """The tensor's value, shape `size`, from the buffer's array."""
        if self.identity:
            return base
        return self._turned(self._read(base))

    def read_at(self, base: jax.Array, offset: jax.Array | None) -> jax.Array:
        """The same with an offset into the buffer that only the running program knows."""
        if offset is None:
            return self.read(base)
        reach = 1 + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        part = lax.dynamic_slice(base.reshape(-1), (offset,), (reach,))
        spec = Spec.of((reach,), self.dtype)
        turned = self.conjugated, self.negated
        return view_plan(spec, self.dtype, self.size, self.stride, 0, *turned).read(part)

    def _turned(self, value: jax.Array) -> jax.Array:
        """Between what is stored and what the tensor means; its own inverse."""
        if self.conjugated:
            value = jnp.conj(value)
        return -value if self.negated else value

    def _read(self, base: jax.Array) -> jax.Array:
        base = self._as_own_dtype(base)
        if 0 in self.size:
            return jnp.zeros(self.size, base.dtype)
        if self.digits is None:
            return base.reshape(-1)[self._indices()]
        d = self.digits
        parts = base.reshape(d.radices)
        if d.lengths != d.radices:
            limits = [s + n for s, n in zip(d.starts, d.lengths, strict=True)]
            parts = lax.slice(parts, d.starts, limits)
        return jnp.broadcast_to(jnp.transpose(parts, d.order).reshape(d.narrow), self.size)

    @property
    def covers(self) -> bool:
        """Whether the tensor is the whole buffer, possibly with its axes permuted."""
        d = self.digits
        return self.identity or (
            d is not None and d.lengths == d.radices and not self.overlaps
            and self.dtype == self.spec.dtype
        )  # fmt: skip

    def write(self, base: jax.Array | None, value: jax.Array) -> jax.Array:
        """The buffer's array with the tensor's elements replaced by `value` (shape `size`).
        `base` may be None where the tensor covers the buffer."""
        if self.identity:
            return value
        value = self._turned(value)
        if base is None:
            assert self.covers
            assert self.digits is not None
            return self._to_storage_order(value, self.digits).reshape(self.spec.shape)
        if 0 in self.size:
            return base
        own = self._as_own_dtype(base)
        if self.digits is None:
            flat = own.reshape(-1).at[self._indices()].set(value)
            return self._as_base_dtype(flat.reshape(own.shape))
        if self.overlaps:
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to "
                "a single memory location. Please clone() the tensor before performing the "
                "operation."
            )
        d = self.digits
        parts = self._to_storage_order(value, d)
        if d.lengths != d.radices:
            parts = lax.dynamic_update_slice(own.reshape(d.radices), parts, d.starts)
        return self._as_base_dtype(parts.reshape(own.shape))

    @staticmethod
    def _to_storage_order(value: jax.Array, d: _Digits) -> jax.Array:
        inverse = [0] * len(d.order)
        for position, axis in enumerate(d.order):
            inverse[axis] = position
        return value.reshape([d.lengths[axis] for axis in d.order]).transpose(inverse)

    @property
    def overlaps(self) -> bool:
        """Whether two elements of the view lie in one place."""
        return any(n > 1 and s == 0 for n, s in zip(self.size, self.stride, strict=True))

    def _indices(self) -> jax.Array:
        index = jnp.full((), self.offset, jnp.int64)
        for dim, (n, s) in enumerate(zip(self.size, self.stride, strict=True)):
            shape = [1] * len(self.size)
            shape[dim] = n
            index = index + (jnp.arange(n, dtype=jnp.int64) * s).reshape(shape)
        return jnp.broadcast_to(index, self.size)

    def _as_own_dtype(self, base: jax.Array) -> jax.Array:
        if self.dtype == self.spec.dtype:
            return base
        return reinterpret(base.reshape(-1), numpy_dtype(self.dtype))

    def _as_base_dtype(self, own: jax.Array) -> jax.Array:
        if self.dtype == self.spec.dtype:
            return own
        return reinterpret(own.reshape(-1), numpy_dtype(self.spec.dtype)).reshape(self.spec.shape)


def reinterpret(flat: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
    """The bytes of a 1-D array seen as another dtype, as Tensor.view(dtype) does."""
    source = np.dtype(flat.dtype)
    if source == dtype:
        return flat
    if source.kind == "c":
        half: np.dtype[Any] = np.dtype(f"f{source.itemsize // 2}")
        return reinterpret(jnp.stack([flat.real, flat.imag], -1).reshape(-1).astype(half), dtype)
    if dtype.kind == "c":
        half = np.dtype(f"f{dtype.itemsize // 2}")
        pairs = reinterpret(flat, half).reshape(-1, 2)
        return lax.complex(pairs[:, 0], pairs[:, 1])
    if source.kind == "b":
        return reinterpret(flat.astype(np.uint8), dtype)
    if dtype.kind == "b":
        return reinterpret(flat, np.dtype(np.uint8)) != 0
    if dtype.itemsize > source.itemsize:
        flat = flat.reshape(-1, dtype.itemsize // source.itemsize)
    return lax.bitcast_convert_type(flat, dtype).reshape(-1)


@functools.lru_cache(maxsize=65536)
def view_plan(
    spec: Spec, dtype: torch.dtype, size: Shape, stride: Shape, offset: int,
    conjugated: bool = False, negated: bool = False,
) -> ViewPlan:  # fmt: skip
    """How a tensor of this geometry lies over a buffer of this spec."""
    size, stride = tuple(size), tuple(stride)
    same = dtype == spec.dtype
    dense = all(
        n == 1 or s == c for n, s, c in zip(size, stride, contiguous_strides(size), strict=True)
    )
    identity = same and size == spec.shape and dense and offset == 0
    identity = identity and not conjugated and not negated
    if same:
        base_shape, numel = spec.shape, spec.numel
    else:
        numel = spec.nbytes // numpy_dtype(dtype).itemsize
        base_shape = (numel,)
    digits = None
    if not identity and 0 not in size:
        digits = _take_apart(base_shape, numel, size, stride, offset)
    return ViewPlan(spec, dtype, size, stride, offset, digits, identity, conjugated, negated)


def view_of(tensor: torch.Tensor, spec: Spec) -> ViewPlan:
    """How a device tensor lies over its buffer."""
    return view_plan(
        spec, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset(),
        tensor.is_conj(), tensor.is_neg(),
    )  # fmt: skip


def _take_apart(
    base_shape: Shape, numel: int, size: Shape, stride: Shape, offset: int
) -> _Digits | None:
    moving = [(s, n, i) for i, (n, s) in enumerate(zip(size, stride, strict=True)) if n > 1 and s]
    moving.sort(key=lambda m: -m[0])
    units = [s for s, _, _ in moving]
    if len(set(units)) != len(units):
        return None
    base_units = {
        s for n, s in zip(base_shape, contiguous_strides(base_shape), strict=True) if n > 1
    }
    for points in (sorted(base_units | set(units) | {1}, reverse=True),
                   sorted({*units, 1}, reverse=True)):  # fmt: skip
        found = _digits_at(points, numel, size, moving, offset)
        if found is not None:
            return found
    return None


def _digits_at(
    points: list[int], numel: int, size: Shape, moving: list[tuple[int, int, int]], offset: int
) -> _Digits | None:
    """Digits with the given units (descending, ending in 1), or None if the view does not come
    apart along them."""
    upper = [numel, *points[:-1]]
    if any(u % p for u, p in zip(upper, points, strict=True)) or numel == 0:
        return None
    radices = [u // p for u, p in zip(upper, points, strict=True)]
    starts, left = [], offset
    for p in points:
        starts.append(left // p)
        left %= p
    if starts and starts[0] >= radices[0]:
        return None
    lengths = [1] * len(points)
    owner: dict[int, int] = {}  # digit -> view dim
    for unit, count, dim in moving:
        k, rest = points.index(unit), count
        while True:
            if k < 0 or k in owner:
                return None
            if rest <= radices[k] - starts[k]:
                lengths[k], owner[k] = rest, dim
                break
            if starts[k] or rest % radices[k]:
                return None
            lengths[k], owner[k] = radices[k], dim
            rest //= radices[k]
            k -= 1
    order = sorted(range(len(points)), key=lambda k: (owner.get(k, -1), k))
    narrow = [1] * len(size)
    for k, dim in owner.items():
        narrow[dim] *= lengths[k]
    return _Digits(tuple(radices), tuple(starts), tuple(lengths), tuple(order), tuple(narrow))
