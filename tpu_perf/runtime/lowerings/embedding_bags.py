"""Sums, means and maxima of rows of a table, bag by bag, with their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tpu_perf.runtime.lowerings.indexing import sum_rows, take_rows
from tpu_perf.runtime.lowerings.precision import cast, wide
from tpu_perf.runtime.lowerings.reductions import vector_norm
from tpu_perf.runtime.lowerings.registry import Call, lowers

SUM, MEAN, MAX = 0, 1, 2  # torch's EmbeddingBagMode


def _bags(indices: jax.Array, offsets: jax.Array, include_last: bool) -> tuple[jax.Array, int]:
    """The bag of each index, and how many bags there are. Indices before the first bag or after
    the last get the number of bags: they are in none."""
    count = offsets.shape[0] - include_last
    places = jnp.arange(indices.shape[0], dtype=offsets.dtype)
    bag = jnp.searchsorted(offsets, places, side="right", method="compare_all") - 1
    return jnp.where(bag < 0, count, jnp.minimum(bag, count)).astype(jnp.int32), count


@lowers("_embedding_bag", "_embedding_bag_forward_only", index_check="indices:0:weight")
def embedding_bag(
    call: Call,
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    bag, count = _bags(indices, offsets, include_last_offset)
    padding_idx = padding_idx + weight.shape[0] if padding_idx < -1 else padding_idx
    kept = indices != padding_idx if padding_idx >= 0 else jnp.ones(indices.shape, jnp.bool_)
    inside = jnp.where(kept, bag, count)
    rows = wide(take_rows(weight, indices.astype(jnp.int32)))
    sizes = sum_rows(kept.astype(jnp.int32), bag, count + 1)[:count]
    best = jnp.zeros(call.out[3].shape, jnp.int64)
    if mode == MAX:
        low = jnp.full((count + 1, weight.shape[1]), -jnp.inf, rows.dtype)
        top = low.at[inside].max(rows, mode="drop")[:count]
        # The first row of a bag that attains its maximum.
        hit = (rows == take_rows(jnp.concatenate([top, low[:1]]), inside)) & kept[:, None]
        far = jnp.asarray(indices.shape[0], jnp.int32)
        places = jnp.where(hit, jnp.arange(indices.shape[0], dtype=jnp.int32)[:, None], far)
        first = jnp.full((count + 1, weight.shape[1]), far).at[inside].min(places, mode="drop")
        first = first[:count]
        filled = (sizes > 0)[:, None]
        out = jnp.where(filled, top, 0)
        if indices.shape[0]:
            picked = take_rows(indices, jnp.minimum(first, far - 1))
            best = jnp.where(filled, picked, -1).astype(jnp.int64)
        else:
            best = jnp.full(first.shape, -1, jnp.int64)
    else:
        if per_sample_weights is not None:
            rows = rows * cast(per_sample_weights, rows.dtype)[:, None]
        out = sum_rows(rows, inside, count + 1)[:count]
        if mode == MEAN:
            out = out / jnp.maximum(sizes, 1).astype(out.dtype)[:, None]
    if best.shape != call.out[3].shape:
        best = jnp.zeros(call.out[3].shape, jnp.int64)
    all_sizes = jnp.zeros(call.out[2].shape, jnp.int32).at[:count].set(sizes)
    return out, bag, all_sizes, best


def _bag_gradient(
    grad: jax.Array,
    indices: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: jax.Array | None,
    padding_idx: int,
) -> jax.Array:
    grad, count = wide(grad), grad.shape[0]
    if padding_idx < -1:
        padding_idx += num_weights
    if mode == MAX:
        rows = jnp.where(maximum_indices < 0, num_weights, maximum_indices).astype(jnp.int32)
        columns = jnp.arange(grad.shape[1], dtype=jnp.int32)
        empty = jnp.zeros((num_weights, grad.shape[1]), grad.dtype)
        return empty.at[rows, columns].add(grad, mode="drop")
    spread = jnp.concatenate([grad, jnp.zeros((1, grad.shape[1]), grad.dtype)])
    share = take_rows(spread, jnp.minimum(offset2bag, count).astype(jnp.int32))
    if mode == MEAN:
        sizes = jnp.concatenate([bag_size[:count], jnp.ones((1,), bag_size.dtype)])
        sizes = jnp.maximum(take_rows(sizes, jnp.minimum(offset2bag, count)), 1)
        share = share / sizes.astype(share.dtype)[:, None]
    if per_sample_weights is not None:
        share = share * cast(per_sample_weights, share.dtype)[:, None]
    index = indices.astype(jnp.int32)
    if scale_grad_by_freq:
        often = sum_rows(jnp.ones(index.shape, share.dtype), index, num_weights)
        share = share / take_rows(often, index)[:, None]
    if padding_idx >= 0:
        share = jnp.where((index == padding_idx)[:, None], 0, share)
    return sum_rows(share, index, num_weights)


@lowers("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    call: Call,
    grad: jax.Array,
    indices: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    return _bag_gradient(grad, indices, offset2bag, bag_size, maximum_indices, num_weights,
                         scale_grad_by_freq, mode, per_sample_weights, padding_idx)  # fmt: skip


@lowers("_embedding_bag_backward")
def embedding_bag_backward(
    call: Call,
    grad: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    return _bag_gradient(grad, indices, offset2bag, bag_size, maximum_indices, num_weights,
                         scale_grad_by_freq, mode, per_sample_weights, padding_idx)  # fmt: skip


@lowers("_embedding_bag_per_sample_weights_backward")
def per_sample_weights_backward(
    call: Call,
    grad: jax.Array,
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    mode: int,
    padding_idx: int = -1,
) -> jax.Array:
    grad = wide(grad)
    if padding_idx < -1:
        padding_idx += weight.shape[0]
    index = indices.astype(jnp.int32)
    padded = jnp.concatenate([grad, jnp.zeros((1, grad.shape[1]), grad.dtype)])
    share = take_rows(padded, jnp.minimum(offset2bag, grad.shape[0]).astype(jnp.int32))
    made = jnp.sum(share * cast(take_rows(weight, index), grad.dtype), axis=-1)
    return jnp.where(index == padding_idx, 0, made) if padding_idx >= 0 else made


@lowers("embedding_renorm", static_numbers=True, index_check="indices:0:self")
def embedding_renorm(
    call: Call, self: jax.Array, indices: jax.Array, max_norm: float, norm_type: float
) -> jax.Array:
    x = wide(self)
    size = vector_norm(x, norm_type, (1,), True)
    limit = jnp.asarray(max_norm, size.dtype)
    scale = jnp.where(size > limit, limit / (size + jnp.asarray(1e-7, size.dtype)), 1)
    named = jnp.zeros((self.shape[0],), jnp.bool_).at[indices.reshape(-1)].set(True)
    return jnp.where(named[:, None], x * scale, x)
