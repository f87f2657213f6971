"""Views as values, for graphs: the same elements under another shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from tpu_perf.runtime.buffers import Spec, contiguous_strides
from tpu_perf.runtime.dtypes import TO_TORCH, numpy_dtype
from tpu_perf.runtime.lowerings.precision import cast, wrap_dim
from tpu_perf.runtime.lowerings.registry import Call, lowers
from tpu_perf.runtime.views import reinterpret, view_plan


@lowers(
    "view",
    "_unsafe_view",
    "_reshape_alias",
    "view_copy",
    "_reshape_copy",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "squeeze_copy",
    "squeeze_copy.dim",
    "squeeze_copy.dims",
    "unsqueeze",
    "unsqueeze_copy",
    "_reshape_alias_copy",
)
def view(call: Call, self: jax.Array, *args: Any, **options: Any) -> jax.Array:
    return self.reshape(call.shape)


@lowers("expand", "expand_copy")
def expand(call: Call, self: jax.Array, *args: Any, **options: Any) -> jax.Array:
    return jnp.broadcast_to(self, call.shape)


@lowers(
    "alias",
    "detach",
    "alias_copy",
    "detach_copy",
    "lift",
    "lift_fresh",
    "lift_fresh_copy",
    "clone",
    "_to_copy",
)
def identity(call: Call, self: jax.Array, *args: Any, **options: Any) -> jax.Array:
    return self


@lowers("copy", "copy_")
def copy(call: Call, self: jax.Array, src: jax.Array, non_blocking: bool = False) -> jax.Array:
    return jnp.broadcast_to(cast(src, self.dtype), self.shape)


@lowers("view.dtype", "view_copy.dtype")
def view_dtype(call: Call, self: jax.Array, dtype: torch.dtype) -> jax.Array:
    return reinterpret(self.reshape(-1), numpy_dtype(dtype)).reshape(call.shape)


@lowers("permute", "permute_copy")
def permute(call: Call, self: jax.Array, dims: Sequence[int]) -> jax.Array:
    return jnp.transpose(self, [wrap_dim(d, self.ndim) for d in dims])


@lowers("transpose.int", "transpose_copy.int")
def transpose(call: Call, self: jax.Array, dim0: int, dim1: int) -> jax.Array:
    return jnp.swapaxes(self, dim0, dim1) if self.ndim else self


@lowers("t", "t_copy")
def t(call: Call, self: jax.Array) -> jax.Array:
    return jnp.swapaxes(self, -1, -2) if self.ndim >= 2 else self


def slice_bounds(size: int, start: int | None, end: int | None, step: int) -> tuple[int, int, int]:
    """Start, end and step of a slice within a dim, as torch clips them."""
    start, end, step = slice(start, end, step).indices(size)
    return start, max(start, end), step


@lowers("slice.Tensor", "slice_copy.Tensor")
def slice_(
    call: Call,
    self: jax.Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> jax.Array:
    dim = wrap_dim(dim, self.ndim)
    start, end, step = slice_bounds(self.shape[dim], start, end, step)
    return lax.slice_in_dim(self, start, end, step, axis=dim)


@lowers("narrow_copy")
def narrow(call: Call, self: jax.Array, dim: int, start: int, length: int) -> jax.Array:
    dim = wrap_dim(dim, self.ndim)
    if start < 0:
        start += self.shape[dim]
    return lax.slice_in_dim(self, start, start + length, axis=dim)


@lowers("select.int", "select_copy.int")
def select(call: Call, self: jax.Array, dim: int, index: int) -> jax.Array:
    return lax.index_in_dim(self, index, wrap_dim(dim, self.ndim), keepdims=False)


def _cut(self: jax.Array, sizes: Sequence[int], dim: int) -> list[jax.Array]:
    parts, start = [], 0
    for size in sizes:
        parts.append(lax.slice_in_dim(self, start, start + size, axis=dim))
        start += size
    return parts


@lowers("split_with_sizes", "split_with_sizes_copy")
def split_with_sizes(
    call: Call, self: jax.Array, split_sizes: Sequence[int], dim: int = 0
) -> list[jax.Array]:
    return _cut(self, split_sizes, wrap_dim(dim, self.ndim))


@lowers("split.Tensor", "split_copy.Tensor")
def split(call: Call, self: jax.Array, split_size: int, dim: int = 0) -> list[jax.Array]:
    dim = wrap_dim(dim, self.ndim)
    size = self.shape[dim]
    if size == 0 or split_size == 0:
        return [self]
    starts = range(0, size, split_size)
    return _cut(self, [min(split_size, size - s) for s in starts], dim)


@lowers("unsafe_split.Tensor")
def unsafe_split(call: Call, self: jax.Array, split_size: int, dim: int = 0) -> list[jax.Array]:
    return split(call, self, split_size, dim)


@lowers("unsafe_split_with_sizes")
def unsafe_split_with_sizes(
    call: Call, self: jax.Array, split_sizes: Sequence[int], dim: int = 0
) -> list[jax.Array]:
    return split_with_sizes(call, self, split_sizes, dim)


@lowers("unbind.int", "unbind_copy.int")
def unbind(call: Call, self: jax.Array, dim: int = 0) -> list[jax.Array]:
    dim = wrap_dim(dim, self.ndim)
    return [lax.index_in_dim(self, i, dim, keepdims=False) for i in range(self.shape[dim])]


def _in_storage_order(call: Call, self: jax.Array) -> jax.Array:
    """The input's elements as they lie in memory: a graph's node knows the strides."""
    node = call.notes.get("node")
    meta = node.args[0].meta.get("val") if node is not None else None
    if meta is None or meta.is_contiguous() or 0 in meta.shape:
        return self
    strides = [int(s) for s in meta.stride()]
    order = sorted(range(self.ndim), key=lambda i: (-strides[i], -self.shape[i]))
    return self.transpose(order)


@lowers("as_strided", "as_strided_copy")
def as_strided(
    call: Call,
    self: jax.Array,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> jax.Array:
    base = _in_storage_order(call, self)
    spec = Spec.of(tuple(base.shape), TO_TORCH[base.dtype])
    plan = view_plan(spec, spec.dtype, tuple(size), tuple(stride), storage_offset or 0)
    return plan.read(base)


@lowers("as_strided_scatter")
def as_strided_scatter(
    call: Call,
    self: jax.Array,
    src: jax.Array,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> jax.Array:
    spec = Spec.of(tuple(self.shape), TO_TORCH[self.dtype])
    plan = view_plan(spec, spec.dtype, tuple(size), tuple(stride), storage_offset or 0)
    return plan.write(self, src.astype(self.dtype))


@lowers("unfold", "unfold_copy")
def unfold(call: Call, self: jax.Array, dimension: int, size: int, step: int) -> jax.Array:
    if self.ndim == 0:
        return jnp.broadcast_to(self.reshape(1), call.shape)
    dim = wrap_dim(dimension, self.ndim)
    strides = list(contiguous_strides(tuple(self.shape)))
    spec = Spec.of(tuple(self.shape), TO_TORCH[self.dtype])
    window = strides[dim]
    strides[dim] *= step
    plan = view_plan(spec, spec.dtype, call.shape, (*strides, window), 0)
    return plan.read(self)


@lowers("diagonal", "diagonal_copy")
def diagonal(
    call: Call, self: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> jax.Array:
    return jnp.asarray(jnp.diagonal(self, offset, dim1, dim2))
