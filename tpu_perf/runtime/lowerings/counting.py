"""Histograms, most frequent values, positions of nonzero elements, checksums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tpu_perf.runtime.lowerings.precision import (
    at_least_1d,
    cast,
    is_float,
    wrap_dim,
    wrap_dims,
)
from tpu_perf.runtime.lowerings.registry import Call, lowers

Maybe = jax.Array | None


def _edges(x: jax.Array, bins: Sequence[int], given: Sequence[float] | None) -> list[jax.Array]:
    """Evenly spaced bin edges of each of the last dim's columns."""
    made = []
    for column, count in enumerate(bins):
        if given is not None:
            low, high = (jnp.asarray(v, x.dtype) for v in given[2 * column : 2 * column + 2])
        elif x.shape[0] == 0:
            low, high = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
        else:
            low, high = jnp.min(x[:, column]), jnp.max(x[:, column])
        flat = low == high
        low, high = jnp.where(flat, low - 0.5, low), jnp.where(flat, high + 0.5, high)
        step = (high - low) / jnp.asarray(count, x.dtype)
        index = jnp.arange(count + 1, dtype=x.dtype)
        up, down = low + step * index, high - step * (count - index)
        made.append(jnp.where(jnp.arange(count + 1) < (count + 1) // 2, up, down))
    return made


def _histogram(x: jax.Array, edges: Sequence[jax.Array], weight: Maybe, density: bool) -> jax.Array:
    """Weights of the points x (n, dims) summed by bin; the last bin holds its right edge."""
    shape = tuple(e.shape[0] - 1 for e in edges)
    flat = jnp.zeros(x.shape[:1], jnp.int32)
    inside = jnp.ones(x.shape[:1], jnp.bool_)
    for column, edge in enumerate(edges):
        value, count = x[:, column], edge.shape[0] - 1
        place = jnp.searchsorted(edge, value, side="right").astype(jnp.int32) - 1
        inside = inside & (value >= edge[0]) & (value <= edge[-1])
        flat = flat * count + jnp.clip(place, 0, count - 1)
    own = jnp.ones(x.shape[:1], x.dtype) if weight is None else weight.reshape(-1)
    own = jnp.where(inside, own, 0)
    total = jnp.zeros(int(np.prod(shape)), x.dtype).at[flat].add(own).reshape(shape)
    if density:
        total = total / jnp.sum(total)
        for axis, edge in enumerate(edges):
            width = (edge[1:] - edge[:-1]).reshape(
                [-1 if a == axis else 1 for a in range(len(shape))]
            )
            total = total / width
    return total


@lowers("histogram.bin_ct")
def histogram_of_count(
    call: Call,
    self: jax.Array,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Maybe = None,
    density: bool = False,
) -> tuple[jax.Array, jax.Array]:
    x = self.reshape(-1, 1)
    edges = _edges(x, [bins], range)
    return _histogram(x, edges, weight, density), edges[0]


@lowers("histogram.bins_tensor")
def histogram_of_edges(
    call: Call, self: jax.Array, bins: jax.Array, *, weight: Maybe = None, density: bool = False
) -> tuple[jax.Array, jax.Array]:
    return _histogram(self.reshape(-1, 1), [bins], weight, density), bins


@lowers("_histogramdd_bin_edges")
def histogramdd_edges(
    call: Call,
    self: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Maybe = None,
    density: bool = False,
) -> list[jax.Array]:
    return _edges(self.reshape(-1, self.shape[-1]), bins, range)


@lowers("_histogramdd_from_bin_cts")
def histogramdd_of_counts(
    call: Call,
    self: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Maybe = None,
    density: bool = False,
) -> jax.Array:
    x = self.reshape(-1, self.shape[-1])
    return _histogram(x, _edges(x, bins, range), weight, density)


@lowers("_histogramdd_from_bin_tensors")
def histogramdd_of_edges(
    call: Call,
    self: jax.Array,
    bins: Sequence[jax.Array],
    *,
    weight: Maybe = None,
    density: bool = False,
) -> jax.Array:
    return _histogram(self.reshape(-1, self.shape[-1]), bins, weight, density)


@lowers("mode")
def mode(
    call: Call, self: jax.Array, dim: int = -1, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The smallest of the most frequent values, and the last place that holds it."""
    x = at_least_1d(self)
    dim = wrap_dim(dim, x.ndim)
    keys = jnp.moveaxis(x, dim, -1)
    keys = keys.astype(jnp.int8) if keys.dtype == jnp.bool_ else keys
    positions = lax.broadcasted_iota(jnp.int32, keys.shape, keys.ndim - 1)
    ordered, index = lax.sort((keys, positions), dimension=-1, is_stable=True, num_keys=1)
    starts = jnp.concatenate(
        [jnp.ones_like(positions[..., :1], jnp.bool_), ordered[..., 1:] != ordered[..., :-1]], -1
    )
    since = positions - lax.cummax(jnp.where(starts, positions, 0), axis=positions.ndim - 1)
    end = jnp.argmax(since, axis=-1, keepdims=True)  # the end of the first longest run
    value, where = (jnp.take_along_axis(a, end, axis=-1)[..., 0] for a in (ordered, index))
    return cast(value, self.dtype).reshape(call.shape), where.reshape(call.shape)


@lowers("nonzero_static")
def nonzero_static(call: Call, self: jax.Array, *, size: int, fill_value: int = -1) -> jax.Array:
    flat = self.reshape(-1) != 0
    rank = jnp.where(flat, jnp.cumsum(flat.astype(jnp.int64)) - 1, size)
    where = jnp.zeros((size,), jnp.int64)
    where = where.at[rank].set(jnp.arange(flat.shape[0], dtype=jnp.int64), mode="drop")
    columns = []
    for n in reversed(self.shape):
        columns.append(where % max(n, 1))
        where = where // max(n, 1)
    found = jnp.stack(columns[::-1], -1) if columns else jnp.zeros((size, 0), jnp.int64)
    used = jnp.arange(size) < jnp.sum(flat)
    return jnp.where(used[:, None], found, fill_value)


@lowers("hash_tensor")
def hash_tensor(
    call: Call,
    self: jax.Array,
    dim: Sequence[int] = (),
    *,
    keepdim: bool = False,
    mode: int = 0,
) -> jax.Array:
    """The exclusive or of the elements' 64-bit forms."""
    wide: Any = self.astype(jnp.float64 if is_float(self.dtype) else jnp.int64)
    bits = lax.bitcast_convert_type(wide, jnp.uint64)
    axes = wrap_dims(tuple(dim), self.ndim)
    made: jax.Array = lax.reduce(bits, np.uint64(0), lax.bitwise_xor, axes)
    return made.reshape(call.shape)
