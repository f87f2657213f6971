"""Sums, means, extremes, norms and variances over dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.lowerings.precision import (
    cast,
    is_complex,
    is_float,
    is_inexact,
    wide,
    wide_float,
    wrap_dim,
    wrap_dims,
)
from tpu_perf.runtime.lowerings.registry import Call, lowers

Dims = int | Sequence[int] | None


def _summand(self: jax.Array, dtype: torch.dtype | None) -> jax.Array:
    """The input in the dtype its sum is taken in: 64-bit for integers, float32 for halves."""
    if dtype is not None:
        self = cast(self, numpy_dtype(dtype))
    if not is_inexact(self.dtype):
        return self.astype(jnp.int64) if dtype is None else self
    return wide(self)


@lowers("sum", "sum.dim_IntList")
def sum_(
    call: Call,
    self: jax.Array,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    x = _summand(self, dtype)
    return jnp.sum(x, axis=wrap_dims(dim, x.ndim), keepdims=keepdim, dtype=x.dtype)


@lowers("nansum")
def nansum(
    call: Call,
    self: jax.Array,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    x = jnp.where(jnp.isnan(self), 0, self) if is_inexact(self.dtype) else self
    return sum_(call, x, dim, keepdim, dtype=dtype)


@lowers("mean", "mean.dim")
def mean(
    call: Call,
    self: jax.Array,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    x = _summand(self, dtype)
    axes = wrap_dims(dim, x.ndim)
    count = math.prod(x.shape[a] for a in axes)
    total = jnp.sum(x, axis=axes, keepdims=keepdim)
    return total / jnp.asarray(count, total.dtype)


@lowers("prod")
def prod(call: Call, self: jax.Array, *, dtype: torch.dtype | None = None) -> jax.Array:
    x = _summand(self, dtype)
    return jnp.prod(x, dtype=x.dtype)


@lowers("prod.dim_int")
def prod_dim(
    call: Call,
    self: jax.Array,
    dim: int,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    x = _summand(self, dtype)
    return jnp.prod(x, axis=wrap_dims(dim, x.ndim), keepdims=keepdim, dtype=x.dtype)


@lowers("amax")
def amax(call: Call, self: jax.Array, dim: Dims = (), keepdim: bool = False) -> jax.Array:
    return jnp.max(self, axis=wrap_dims(dim, self.ndim), keepdims=keepdim)


@lowers("amin")
def amin(call: Call, self: jax.Array, dim: Dims = (), keepdim: bool = False) -> jax.Array:
    return jnp.min(self, axis=wrap_dims(dim, self.ndim), keepdims=keepdim)


@lowers("aminmax")
def aminmax(
    call: Call, self: jax.Array, *, dim: int | None = None, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    return amin(call, self, dim, keepdim), amax(call, self, dim, keepdim)


@lowers("max")
def max_all(call: Call, self: jax.Array) -> jax.Array:
    return jnp.max(self)


@lowers("min")
def min_all(call: Call, self: jax.Array) -> jax.Array:
    return jnp.min(self)


@lowers("max.dim")
def max_dim(
    call: Call, self: jax.Array, dim: int, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    return amax(call, self, dim, keepdim), argmax(call, self, dim, keepdim)


@lowers("min.dim")
def min_dim(
    call: Call, self: jax.Array, dim: int, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    return amin(call, self, dim, keepdim), argmin(call, self, dim, keepdim)


def _arg(function: Any, x: jax.Array, dim: int | None, keepdim: bool) -> jax.Array:
    if dim is None or x.ndim == 0:
        flat: jax.Array = function(x.reshape(-1), axis=0)
        return flat.reshape((1,) * x.ndim) if keepdim else flat
    index: jax.Array = function(x, axis=dim, keepdims=keepdim)
    return index


@lowers("argmax")
def argmax(call: Call, self: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
    return _arg(jnp.argmax, self, dim, keepdim)


@lowers("argmin")
def argmin(call: Call, self: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
    return _arg(jnp.argmin, self, dim, keepdim)


@lowers("any", "any.dim", "any.dims")
def any_(call: Call, self: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    return jnp.any(self != 0, axis=wrap_dims(dim, self.ndim), keepdims=keepdim)


@lowers("all", "all.dim", "all.dims")
def all_(call: Call, self: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    return jnp.all(self != 0, axis=wrap_dims(dim, self.ndim), keepdims=keepdim)


@lowers("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(call: Call, self: jax.Array, dim: Dims = None) -> jax.Array:
    return jnp.sum(self != 0, axis=wrap_dims(dim, self.ndim), dtype=jnp.int64)


@lowers("logsumexp")
def logsumexp(call: Call, self: jax.Array, dim: Dims, keepdim: bool = False) -> jax.Array:
    x = wide_float(self)
    axes = wrap_dims(dim, x.ndim)
    if x.size == 0:
        return jnp.log(jnp.sum(jnp.exp(x), axis=axes, keepdims=keepdim))
    top = jnp.max(x.real, axis=axes, keepdims=True)
    top = jnp.where(jnp.isfinite(top), top, 0)
    total = jnp.log(jnp.sum(jnp.exp(x - top), axis=axes, keepdims=True)) + top
    return total if keepdim else jnp.squeeze(total, axes)


def _moments(
    self: jax.Array, dim: Dims, correction: Any, keepdim: bool
) -> tuple[jax.Array, jax.Array]:
    x = wide(self)
    axes = wrap_dims(dim, x.ndim)
    count = math.prod(x.shape[a] for a in axes)
    center = jnp.sum(x, axis=axes, keepdims=True) / jnp.asarray(count, x.dtype)
    away = x - center
    squares = (away * jnp.conj(away)).real if is_complex(x.dtype) else away * away
    # Unlike the mean, the divisor is clipped: too few samples give inf or nan, never a sign flip.
    divisor = max(count - (1 if correction is None else correction), 0)
    variance = jnp.sum(squares, axis=axes, keepdims=keepdim) / jnp.asarray(divisor, squares.dtype)
    return variance, center if keepdim else jnp.squeeze(center, axes)


@lowers("var.correction", static_numbers=True)
def var(
    call: Call,
    self: jax.Array,
    dim: Dims = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> jax.Array:
    return _moments(self, dim, correction, keepdim)[0]


@lowers("std.correction", static_numbers=True)
def std(
    call: Call,
    self: jax.Array,
    dim: Dims = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> jax.Array:
    return jnp.sqrt(_moments(self, dim, correction, keepdim)[0])


@lowers("var_mean.correction", static_numbers=True)
def var_mean(
    call: Call,
    self: jax.Array,
    dim: Dims = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> tuple[jax.Array, jax.Array]:
    return _moments(self, dim, correction, keepdim)


@lowers("std_mean.correction", static_numbers=True)
def std_mean(
    call: Call,
    self: jax.Array,
    dim: Dims = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> tuple[jax.Array, jax.Array]:
    variance, center = _moments(self, dim, correction, keepdim)
    return jnp.sqrt(variance), center


def vector_norm(
    self: jax.Array, p: float, axes: tuple[int, ...], keepdim: bool, dtype: Any = None
) -> jax.Array:
    """The p-norm over axes, accumulated in at least float32."""
    x = wide_float(self if dtype is None else cast(self, dtype))
    size = jnp.abs(x)
    if p == 0:
        return jnp.sum(x != 0, axis=axes, keepdims=keepdim, dtype=size.dtype)
    if p == 1:
        return jnp.sum(size, axis=axes, keepdims=keepdim)
    if p == 2:
        return jnp.sqrt(jnp.sum(size * size, axis=axes, keepdims=keepdim))
    if p == math.inf:
        return jnp.max(size, axis=axes, keepdims=keepdim)
    if p == -math.inf:
        return jnp.min(size, axis=axes, keepdims=keepdim)
    total = jnp.sum(jnp.power(size, jnp.asarray(p, size.dtype)), axis=axes, keepdims=keepdim)
    return jnp.power(total, jnp.asarray(1 / p, size.dtype))


@lowers("linalg_vector_norm", static_numbers=True)
def linalg_vector_norm(
    call: Call,
    self: jax.Array,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    wanted = None if dtype is None else numpy_dtype(dtype)
    return vector_norm(self, ord, wrap_dims(dim, self.ndim), keepdim, wanted)


@lowers("norm.Scalar", static_numbers=True)
def norm(call: Call, self: jax.Array, p: float = 2) -> jax.Array:
    return vector_norm(self, p, wrap_dims(None, self.ndim), False)


@lowers("norm.ScalarOpt_dim", static_numbers=True)
def norm_dim(
    call: Call, self: jax.Array, p: float | None, dim: Dims, keepdim: bool = False
) -> jax.Array:
    return vector_norm(self, 2 if p is None else p, wrap_dims(dim, self.ndim), keepdim)


@lowers("norm.ScalarOpt_dim_dtype", static_numbers=True)
def norm_dim_dtype(
    call: Call,
    self: jax.Array,
    p: float | None,
    dim: Dims,
    keepdim: bool = False,
    *,
    dtype: torch.dtype,
) -> jax.Array:
    axes = wrap_dims(dim, self.ndim)
    return vector_norm(self, 2 if p is None else p, axes, keepdim, numpy_dtype(dtype))


@lowers("norm.ScalarOpt_dtype", static_numbers=True)
def norm_dtype(call: Call, self: jax.Array, p: float | None, *, dtype: torch.dtype) -> jax.Array:
    axes = wrap_dims(None, self.ndim)
    return vector_norm(self, 2 if p is None else p, axes, False, numpy_dtype(dtype))


@lowers("_foreach_norm.Scalar", static_numbers=True)
def foreach_norm(
    call: Call, self: list[jax.Array], ord: float = 2, dtype: torch.dtype | None = None
) -> list[jax.Array]:
    return [linalg_vector_norm(call, x, ord, dtype=dtype) for x in self]


@lowers("_foreach_max")
def foreach_max(call: Call, self: list[jax.Array]) -> list[jax.Array]:
    return [jnp.max(x) for x in self]


@lowers("renorm", static_numbers=True)
def renorm(call: Call, self: jax.Array, p: float, dim: int, maxnorm: float) -> jax.Array:
    x = wide(self)
    axes = tuple(a for a in range(x.ndim) if a != wrap_dim(dim, x.ndim))
    size = vector_norm(x, p, axes, True)
    limit = jnp.asarray(maxnorm, size.dtype)
    factor = jnp.where(size > limit, limit / (size + jnp.asarray(1e-7, size.dtype)), 1)
    return x * factor


@lowers("dist", static_numbers=True)
def dist(call: Call, self: jax.Array, other: jax.Array, p: float = 2) -> jax.Array:
    gap = self - other
    return vector_norm(gap, p, wrap_dims(None, gap.ndim), False)


@lowers("trace")
def trace(call: Call, self: jax.Array) -> jax.Array:
    x = wide(self) if is_float(self.dtype) else self
    return jnp.trace(x)
