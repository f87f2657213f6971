"""Reading and writing elements at indices that are only known at run time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tpu_perf.runtime.lowerings.precision import (
    cast,
    is_float,
    limits,
    wide,
    wrap_dim,
)
from tpu_perf.runtime.lowerings.registry import Call, Operand, lowers

#: XLA skips writes outside and clamps reads, so no mode of JAX's needs to check again; its other
#: modes add a pass over the indices.
_TRUST: dict[str, Any] = {"mode": "promise_in_bounds", "wrap_negative_indices": False}


def wrap_index(index: jax.Array, size: int) -> jax.Array:
    """Indices counted from the front, as int32 where the dim allows (TPUs emulate int64)."""
    index = jnp.where(index < 0, index + size, index)
    return index.astype(jnp.int32) if size < 2**31 else index


def take_rows(rows: jax.Array, index: jax.Array) -> jax.Array:
    """rows[index] along dim 0. XLA clamps what lies outside."""
    return rows.at[index].get(**_TRUST)


@lowers("embedding", index_check="indices:0:weight")
def embedding(
    call: Call,
    weight: jax.Array,
    indices: jax.Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> jax.Array:
    return take_rows(weight, indices.astype(jnp.int32))


def sum_rows(values: jax.Array, index: jax.Array, count: int) -> jax.Array:
    """The sum of values (n, ...) by index (n,) into `count` rows, accumulated in float32."""
    values = wide(values)
    return jnp.zeros((count, *values.shape[1:]), values.dtype).at[index].add(values, **_TRUST)


@lowers("embedding_dense_backward")
def embedding_dense_backward(
    call: Call,
    grad_output: jax.Array,
    indices: jax.Array,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> jax.Array:
    index = indices.reshape(-1).astype(jnp.int32)
    grad = wide(grad_output).reshape(index.shape[0], grad_output.shape[-1])
    if padding_idx >= 0:
        grad = jnp.where((index == padding_idx)[:, None], 0, grad)
    if scale_grad_by_freq:
        counts = sum_rows(jnp.ones(index.shape, grad.dtype), index, num_weights)
        grad = grad / take_rows(counts, index)[:, None]
    return sum_rows(grad, index, num_weights)


@lowers("index_select", index_check="index:dim:self")
def index_select(call: Call, self: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    if self.ndim == 0:
        return jnp.broadcast_to(self, call.shape)
    dim = wrap_dim(dim, self.ndim)
    where = (*[slice(None)] * dim, wrap_index(index.reshape(-1), self.shape[dim]))
    return self.at[where].get(**_TRUST)


def _coordinates(index: jax.Array, dim: int, size: int) -> tuple[jax.Array, ...]:
    """Full coordinates for gather and scatter: the index along `dim`, positions elsewhere."""
    coordinates = []
    for axis in range(index.ndim):
        if axis == dim:
            coordinates.append(index.astype(jnp.int32) if size < 2**31 else index)
            continue
        shape = [1] * index.ndim
        shape[axis] = index.shape[axis]
        coordinates.append(jnp.arange(index.shape[axis], dtype=jnp.int32).reshape(shape))
    return tuple(coordinates)


@lowers("gather", index_check="index:dim:self")
def gather(
    call: Call, self: jax.Array, dim: int, index: jax.Array, *, sparse_grad: bool = False
) -> jax.Array:
    if index.size == 0:
        return jnp.zeros(call.shape, self.dtype)
    if self.ndim == 0 or index.ndim == 0:
        return take_rows(self.reshape(-1), index.reshape(-1)).reshape(call.shape)
    dim = wrap_dim(dim, self.ndim)
    where = _coordinates(index, dim, self.shape[dim])
    return self.at[where].get(**_TRUST)


_REDUCE = {
    None: "set",
    "add": "add",
    "sum": "add",
    "mean": "add",
    "multiply": "multiply",
    "prod": "multiply",
    "amax": "max",
    "amin": "min",
}


def _scatter(
    self: jax.Array, dim: int, index: jax.Array, src: jax.Array, reduce: str | None
) -> jax.Array:
    if index.size == 0:
        return self
    if self.ndim == 0 or index.ndim == 0:
        shape = self.shape
        flat = _scatter(self.reshape(-1), 0, index.reshape(-1), src.reshape(-1), reduce)
        return flat.reshape(shape)
    if reduce is not None and self.dtype == jnp.bool_:  # XLA has no sum or product of bools
        return _scatter(self.astype(jnp.int32), dim, index, src, reduce) != 0
    dim = wrap_dim(dim, self.ndim)
    base = self if reduce is None else wide(self)
    src = src[tuple(slice(n) for n in index.shape)].astype(base.dtype)
    where = base.at[_coordinates(index, dim, self.shape[dim])]
    write = getattr(where, _REDUCE[reduce])
    return write(src, **_TRUST)  # type: ignore[no-any-return]


@lowers("scatter.src", index_check="index:dim:self")
def scatter(call: Call, self: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    return _scatter(self, dim, index, src, None)


@lowers("scatter.value", index_check="index:dim:self")
def scatter_value(
    call: Call, self: jax.Array, dim: int, index: jax.Array, value: Operand
) -> jax.Array:
    return _scatter(self, dim, index, _spread(value, self, index), None)


def _spread(value: Operand, self: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.broadcast_to(cast(value, self.dtype), index.shape)


@lowers("scatter.reduce", index_check="index:dim:self")
def scatter_with(
    call: Call, self: jax.Array, dim: int, index: jax.Array, src: jax.Array, *, reduce: str
) -> jax.Array:
    return _scatter(self, dim, index, src, reduce)


@lowers("scatter.value_reduce", index_check="index:dim:self")
def scatter_value_with(
    call: Call, self: jax.Array, dim: int, index: jax.Array, value: Operand, *, reduce: str
) -> jax.Array:
    return _scatter(self, dim, index, _spread(value, self, index), reduce)


@lowers("scatter_add", index_check="index:dim:self")
def scatter_add(
    call: Call, self: jax.Array, dim: int, index: jax.Array, src: jax.Array
) -> jax.Array:
    return _scatter(self, dim, index, src, "add")


def _neutral(reduce: str, dtype: Any) -> Any:
    """What takes no part in a reduction."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype == jnp.bool_:
        return reduce == "amin"
    if is_float(dtype):
        return -jnp.inf if reduce == "amax" else jnp.inf
    return limits(dtype).min if reduce == "amax" else limits(dtype).max


@lowers("scatter_reduce.two", index_check="index:dim:self")
def scatter_reduce(
    call: Call,
    self: jax.Array,
    dim: int,
    index: jax.Array,
    src: jax.Array,
    reduce: str,
    *,
    include_self: bool = True,
) -> jax.Array:
    if index.size == 0:
        return self
    base = wide(self)
    if not include_self:
        neutral = jnp.full(index.shape, _neutral(reduce, base.dtype), base.dtype)
        base = _scatter(base, dim, index, neutral, None)
    total = _scatter(base, dim, index, src, reduce)
    if reduce != "mean":
        return total
    counts = jnp.full(self.shape, 1 if include_self else 0, jnp.int32)
    counts = _scatter(counts, dim, index, jnp.ones(index.shape, jnp.int32), "add")
    counts = jnp.maximum(counts, 1).astype(total.dtype)
    return total / counts if is_float(total.dtype) else jnp.floor_divide(total, counts)


def _subscripts(self: jax.Array, indices: Sequence[jax.Array | None]) -> tuple[Any, ...]:
    """torch's index list as a JAX subscript with wrapped integer indices."""
    subscript: list[Any] = []
    axis = 0
    for index in indices:
        if index is None:
            subscript.append(slice(None))
            axis += 1
        elif index.dtype in (jnp.bool_, jnp.uint8):
            raise NotImplementedError(
                "indexing with a mask gives a shape that depends on values; only a mask that "
                "selects where a fixed value is written has a program (masked_fill)"
            )
        else:
            subscript.append(wrap_index(index, self.shape[axis]))
            axis += 1
    return tuple(subscript)


@lowers("index.Tensor", "_unsafe_index.Tensor", index_check="indices:*:self")
def index(call: Call, self: jax.Array, indices: Sequence[jax.Array | None]) -> jax.Array:
    where = _subscripts(self, indices)
    return self.at[where].get(**_TRUST)


def _put_by_mask(
    self: jax.Array, indices: Sequence[jax.Array | None], values: jax.Array, accumulate: bool
) -> jax.Array | None:
    """What writing through a single mask gives, None for other indices. Its shape is known, unlike
    that of reading through one: the k-th selected place takes the k-th row of the values."""
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if len(given) != 1 or given[0][1].dtype not in (jnp.bool_, jnp.uint8):
        return None
    axis, mask = given[0]
    mask = mask != 0
    rest = self.ndim - axis - mask.ndim
    over = mask.reshape(mask.shape + (1,) * rest)
    rows = values.astype(self.dtype)
    if rows.ndim > rest and rows.shape[rows.ndim - rest - 1] != 1:
        if axis:
            return None
        order = jnp.maximum(jnp.cumsum(mask.reshape(-1).astype(jnp.int32)) - 1, 0)
        rows = take_rows(rows, order.reshape(mask.shape)) if rows.shape[0] else self
    elif rows.ndim > rest:
        rows = rows.reshape(*rows.shape[: rows.ndim - rest - 1], *[1] * mask.ndim,
                            *rows.shape[rows.ndim - rest :])  # fmt: skip
    return jnp.where(over, self + rows if accumulate else rows, self)


def _add_at(base: jax.Array, where: tuple[Any, ...], values: jax.Array) -> jax.Array:
    if base.dtype == jnp.bool_:  # XLA has no sum of bools; torch's is "any"
        return _add_at(base.astype(jnp.int32), where, values) != 0
    return base.at[where].add(values.astype(base.dtype), **_TRUST)


@lowers("index_put", "_unsafe_index_put", "_index_put_impl", index_check="indices:*:self")
def index_put(
    call: Call,
    self: jax.Array,
    indices: Sequence[jax.Array | None],
    values: jax.Array,
    accumulate: bool = False,
    unsafe: bool = False,
) -> jax.Array:
    by_mask = _put_by_mask(self, indices, values, accumulate)
    if by_mask is not None:
        return by_mask
    where = _subscripts(self, indices)
    if not accumulate:
        return self.at[where].set(values.astype(self.dtype), **_TRUST)
    return _add_at(wide(self), where, values)


@lowers("index_add", index_check="index:dim:self")
def index_add(
    call: Call,
    self: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    *,
    alpha: Operand = 1,
) -> jax.Array:
    base = wide(self)
    source = source.astype(base.dtype) * cast(alpha, base.dtype)
    if self.ndim == 0:
        return base + jnp.sum(source)
    dim = wrap_dim(dim, self.ndim)
    where = (*[slice(None)] * dim, wrap_index(index.reshape(-1), self.shape[dim]))
    return _add_at(base, where, source)


@lowers("index_copy", index_check="index:dim:self")
def index_copy(
    call: Call, self: jax.Array, dim: int, index: jax.Array, source: jax.Array
) -> jax.Array:
    if self.ndim == 0:
        return source.reshape(())
    dim = wrap_dim(dim, self.ndim)
    where = (*[slice(None)] * dim, wrap_index(index.reshape(-1), self.shape[dim]))
    return self.at[where].set(source.astype(self.dtype), **_TRUST)


@lowers("index_fill.int_Scalar", "index_fill.int_Tensor", index_check="index:dim:self:wraps")
def index_fill(
    call: Call, self: jax.Array, dim: int, index: jax.Array, value: Operand
) -> jax.Array:
    if self.ndim == 0:
        return cast(value, self.dtype)
    dim = wrap_dim(dim, self.ndim)
    where = (*[slice(None)] * dim, wrap_index(index.reshape(-1), self.shape[dim]))
    return self.at[where].set(cast(value, self.dtype), **_TRUST)


@lowers("take", index_check="index:all:self:wraps")
def take(call: Call, self: jax.Array, index: jax.Array) -> jax.Array:
    return take_rows(self.reshape(-1), wrap_index(index, self.size))


@lowers("put", index_check="index:all:self:wraps")
def put(
    call: Call, self: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False
) -> jax.Array:
    flat, where = self.reshape(-1), wrap_index(index, self.size)
    values = source.reshape(index.shape)
    if accumulate:
        return _add_at(wide(flat), (where,), values).reshape(self.shape)
    return flat.at[where].set(values.astype(self.dtype), **_TRUST).reshape(self.shape)


@lowers("repeat_interleave.Tensor")
def repeat_interleave(
    call: Call, repeats: jax.Array, *, output_size: int | None = None
) -> jax.Array:
    """Each index as often as its element says; the result's size is part of the program."""
    (size,) = call.shape
    return jnp.repeat(jnp.arange(repeats.size), repeats, total_repeat_length=size)


@lowers("masked_scatter")
def masked_scatter(call: Call, self: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    mask = jnp.broadcast_to(mask, shape)
    if source.size == 0:
        return jnp.broadcast_to(self, shape)
    # The k-th true element takes the k-th element of the source.
    order = (jnp.cumsum(mask.reshape(-1).astype(jnp.int32)) - 1).reshape(shape)
    picked = take_rows(source.reshape(-1), jnp.maximum(order, 0))
    return jnp.where(mask, picked.astype(self.dtype), jnp.broadcast_to(self, shape))


@lowers("masked_scatter_backward")
def masked_scatter_backward(
    call: Call, grad_output: jax.Array, mask: jax.Array, sizes: Sequence[int]
) -> jax.Array:
    """The gradient of the source: those of the true elements in order, then zeros."""
    size = math.prod(call.shape)
    if size == 0 or grad_output.size == 0:
        return jnp.zeros(call.shape, grad_output.dtype)
    chosen = jnp.broadcast_to(mask, grad_output.shape).reshape(-1)
    order = jnp.where(chosen, jnp.cumsum(chosen.astype(jnp.int32)) - 1, size)
    made = jnp.zeros(size, grad_output.dtype).at[order].set(grad_output.reshape(-1), mode="drop")
    return made.reshape(call.shape)


@lowers("index_reduce", index_check="index:dim:self")
def index_reduce(
    call: Call,
    self: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    reduce: str,
    *,
    include_self: bool = True,
) -> jax.Array:
    """scatter_reduce with one index for each slice."""
    if self.ndim == 0:
        self, source = self.reshape(1), source.reshape(1)
    dim = wrap_dim(dim, self.ndim)
    shape = [1] * self.ndim
    shape[dim] = index.size
    spread = jnp.broadcast_to(index.reshape(shape), source.shape)
    made = scatter_reduce(call, self, dim, spread, source, reduce, include_self=include_self)
    return made.reshape(call.shape)
