"""Sorting, selecting by rank, running sums and searching in sorted values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.lowerings.precision import (
    at_least_1d,
    cast,
    is_float,
    is_inexact,
    wide,
    wide_float,
    wrap_dim,
)
from tpu_perf.runtime.lowerings.registry import Call, Operand, as_array, lowers, promote

Pair = tuple[jax.Array, jax.Array]


def _sorted(self: jax.Array, dim: int, descending: bool) -> Pair:
    """Values and indices in stable order; NaN counts as the largest value."""
    x = at_least_1d(self)
    dim = wrap_dim(dim, x.ndim)
    if descending:
        # Ascending over the reversed input, reversed again, keeps equal values in order.
        x = jnp.flip(x, dim)
    positions = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    keys = x.astype(jnp.int8) if x.dtype == jnp.bool_ else x
    ordered, index = lax.sort((keys, positions), dimension=dim, is_stable=True, num_keys=1)
    if descending:
        ordered, index = jnp.flip(ordered, dim), x.shape[dim] - 1 - jnp.flip(index, dim)
    return cast(ordered, self.dtype).reshape(self.shape), index.reshape(self.shape)


@lowers("sort")
def sort(call: Call, self: jax.Array, dim: int = -1, descending: bool = False) -> Pair:
    return _sorted(self, dim, descending)


@lowers("sort.stable")
def sort_stable(
    call: Call, self: jax.Array, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> Pair:
    return _sorted(self, dim, descending)


@lowers("argsort", "argsort.stable")
def argsort(
    call: Call,
    self: jax.Array,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: bool = False,
) -> jax.Array:
    return _sorted(self, dim, descending)[1]


@lowers("topk")
def topk(
    call: Call,
    self: jax.Array,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> Pair:
    x = jnp.moveaxis(at_least_1d(self), wrap_dim(dim, max(self.ndim, 1)), -1)
    if not is_float(x.dtype):
        ordered, index = _sorted(x, -1, largest)
        values, index = ordered[..., :k], index[..., :k]
    elif largest:
        values, index = lax.top_k(x, k)
    else:
        # NaN counts as the largest, so it must come last here.
        flipped = jnp.where(jnp.isnan(x), -jnp.inf, -x)
        index = lax.top_k(flipped, k)[1]
        values = jnp.take_along_axis(x, index, axis=-1)
    back = wrap_dim(dim, max(self.ndim, 1))
    return jnp.moveaxis(values, -1, back), jnp.moveaxis(index, -1, back)


def _kth(self: jax.Array, k: int, dim: int, keepdim: bool) -> Pair:
    values, index = _sorted(self, dim, False)
    if self.ndim == 0:
        return values, index
    dim = wrap_dim(dim, self.ndim)
    picked = (lax.slice_in_dim(a, k, k + 1, axis=dim) for a in (values, index))
    value, where = (a if keepdim else jnp.squeeze(a, dim) for a in picked)
    return value, where


@lowers("kthvalue")
def kthvalue(call: Call, self: jax.Array, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    return _kth(self, k - 1, dim, keepdim)


@lowers("median.dim")
def median_dim(call: Call, self: jax.Array, dim: int, keepdim: bool = False) -> Pair:
    x = at_least_1d(self)
    axis = wrap_dim(dim, x.ndim)
    value, index = _kth(x, (x.shape[axis] - 1) // 2, axis, True)
    if is_float(x.dtype):
        # A NaN anywhere is the median; the first one's place is its index.
        bad = jnp.isnan(x)
        has = jnp.any(bad, axis=axis, keepdims=True)
        value = jnp.where(has, jnp.nan, value)
        index = jnp.where(has, jnp.argmax(bad, axis=axis, keepdims=True), index)
    return value.reshape(call.shape), index.reshape(call.shape)


@lowers("median")
def median(call: Call, self: jax.Array) -> jax.Array:
    if self.size == 0:
        return jnp.full((), jnp.nan, self.dtype)
    flat = self.reshape(-1)
    value = jnp.sort(flat)[(flat.shape[0] - 1) // 2]
    return jnp.where(jnp.any(jnp.isnan(flat)), jnp.nan, value) if is_float(flat.dtype) else value


@lowers("nanmedian")
def nanmedian(call: Call, self: jax.Array) -> jax.Array:
    flat = self.reshape(-1)
    if flat.size == 0 or not is_float(flat.dtype):
        return median(call, self)
    count = jnp.sum(~jnp.isnan(flat))
    return jnp.sort(flat)[jnp.maximum((count - 1) // 2, 0)]


@lowers("nanmedian.dim")
def nanmedian_dim(call: Call, self: jax.Array, dim: int, keepdim: bool = False) -> Pair:
    x = at_least_1d(self)
    axis = wrap_dim(dim, x.ndim)
    values, index = _sorted(x, axis, False)
    bad = jnp.isnan(x) if is_float(x.dtype) else jnp.zeros(x.shape, jnp.bool_)
    count = jnp.sum(~bad, axis=axis, keepdims=True)
    rank = jnp.maximum((count - 1) // 2, 0)
    value, where = (jnp.take_along_axis(a, rank, axis=axis) for a in (values, index))
    return value.reshape(call.shape), where.reshape(call.shape)


def _running(self: jax.Array, dtype: torch.dtype | None) -> jax.Array:
    if dtype is not None:
        self = cast(self, numpy_dtype(dtype))
    elif not is_inexact(self.dtype):
        self = self.astype(jnp.int64)
    return wide(self)


@lowers("cumsum")
def cumsum(call: Call, self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    x = _running(self, dtype)
    return jnp.cumsum(x, wrap_dim(dim, x.ndim), dtype=x.dtype) if x.ndim else x


@lowers("cumprod")
def cumprod(
    call: Call, self: jax.Array, dim: int, *, dtype: torch.dtype | None = None
) -> jax.Array:
    x = _running(self, dtype)
    return jnp.cumprod(x, wrap_dim(dim, x.ndim), dtype=x.dtype) if x.ndim else x


@lowers("logcumsumexp")
def logcumsumexp(call: Call, self: jax.Array, dim: int) -> jax.Array:
    x = wide_float(self)
    return lax.cumlogsumexp(x, wrap_dim(dim, x.ndim)) if x.ndim and x.size else x


def _running_best(self: jax.Array, dim: int, better: Callable[[Any, Any], Any]) -> Pair:
    """Running extreme and the last index that attained it; NaN, once seen, stays."""
    if self.ndim == 0 or self.size == 0:
        return self, jnp.zeros(self.shape, jnp.int32)
    dim = wrap_dim(dim, self.ndim)
    positions = lax.broadcasted_iota(jnp.int32, self.shape, dim)

    def later(a: Pair, b: Pair) -> Pair:
        take = better(b[0], a[0])
        if is_float(self.dtype):
            take = (take & ~jnp.isnan(a[0])) | jnp.isnan(b[0])
        return jnp.where(take, b[0], a[0]), jnp.where(take, b[1], a[1])

    values, index = lax.associative_scan(later, (self, positions), axis=dim)
    return values, index


@lowers("cummax")
def cummax(call: Call, self: jax.Array, dim: int) -> Pair:
    return _running_best(self, dim, jnp.greater_equal)


@lowers("cummin")
def cummin(call: Call, self: jax.Array, dim: int) -> Pair:
    return _running_best(self, dim, jnp.less_equal)


def _search(ordered: jax.Array, values: jax.Array, right: bool, side: str | None) -> jax.Array:
    """Insertion points into the last dim."""
    where = side if side is not None else ("right" if right else "left")
    ordered, values = promote(at_least_1d(ordered), at_least_1d(values))
    if ordered.ndim == 1:
        return jnp.searchsorted(ordered, values, side=where)
    rows = ordered.reshape(-1, ordered.shape[-1])
    found = jax.vmap(lambda o, v: jnp.searchsorted(o, v, side=where))(
        rows, values.reshape(rows.shape[0], -1)
    )
    return found.reshape(values.shape)


def _in_order(ordered: jax.Array, sorter: jax.Array | None) -> jax.Array:
    return ordered if sorter is None else jnp.take_along_axis(ordered, sorter, axis=-1)


@lowers("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    call: Call,
    sorted_sequence: jax.Array,
    self: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    ordered = _in_order(sorted_sequence, sorter)
    return _search(ordered, as_array(self), right, side).reshape(call.shape)


@lowers("bucketize.Tensor", "bucketize.Scalar")
def bucketize(
    call: Call,
    self: Operand,
    boundaries: jax.Array,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> jax.Array:
    return _search(boundaries, as_array(self), right, None).reshape(call.shape)


@lowers("histc", static_numbers=True)
def histc(
    call: Call, self: jax.Array, bins: int = 100, min: float = 0, max: float = 0
) -> jax.Array:
    x = self.reshape(-1)
    low, high = jnp.asarray(min, x.dtype), jnp.asarray(max, x.dtype)
    if min == max:
        low, high = jnp.min(x), jnp.max(x)
        low, high = jnp.where(low == high, low - 1, low), jnp.where(low == high, high + 1, high)
    place = jnp.floor((x - low) / (high - low) * bins).astype(jnp.int32)
    place = jnp.where((x >= low) & (x <= high), jnp.minimum(place, bins - 1), bins)
    return jnp.zeros((bins,), jnp.float32).at[place].add(1, mode="drop")
