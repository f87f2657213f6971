"""Scaled dot-product attention and its gradient, as one program each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings.matmul import product
from tpu_perf.runtime.lowerings.precision import cast, compute_dtype, wide
from tpu_perf.runtime.lowerings.registry import Call, lowers

Maybe = jax.Array | None


class _Heads(NamedTuple):
    """Query, key and value with batch and heads in front: query as (batch, key heads, queries per
    key head, length, width), so that grouped queries share a key without repeating it."""

    query: jax.Array
    key: jax.Array
    value: jax.Array


def _grouped(x: jax.Array, key_heads: int) -> jax.Array:
    batch, heads, length, width = x.shape
    return x.reshape(batch, key_heads, heads // key_heads, length, width)


def _heads(query: jax.Array, key: jax.Array, value: jax.Array) -> _Heads:
    query, key, value = (x[None] if x.ndim == 3 else x for x in (query, key, value))
    return _Heads(_grouped(query, key.shape[1]), key, value)


_BATCH = ((0, 1), (0, 1))


def _onto_keys(x: jax.Array, keys: jax.Array) -> jax.Array:
    """(b, h, g, s, d) x (b, h, t, d) -> (b, h, g, s, t)."""
    return product(x, keys, ((4,), (3,)), _BATCH)  # type: ignore[no-any-return]


def _over_keys(weights: jax.Array, values: jax.Array) -> jax.Array:
    """(b, h, g, s, t) x (b, h, t, d) -> (b, h, g, s, d)."""
    return product(weights, values, ((4,), (2,)), _BATCH)  # type: ignore[no-any-return]


def _over_queries(weights: jax.Array, x: jax.Array) -> jax.Array:
    """(b, h, g, s, t) x (b, h, g, s, d) -> (b, h, t, d), summed over the group."""
    return product(weights, x, ((2, 3), (2, 3)), _BATCH)  # type: ignore[no-any-return]


def _scores(heads: _Heads, bias: Maybe, is_causal: bool, scale: float | None) -> jax.Array:
    factor = 1 / math.sqrt(heads.query.shape[-1]) if scale is None else scale
    scores = _onto_keys(heads.query, heads.key)
    scores = scores * jnp.asarray(factor, scores.dtype)
    lowest = jnp.asarray(-jnp.inf, scores.dtype)
    if bias is not None:
        spread = _grouped_bias(bias, heads)
        if bias.dtype == jnp.bool_:
            scores = jnp.where(spread, scores, lowest)
        else:
            scores = scores + cast(spread, scores.dtype)
    if is_causal:
        # torch aligns the triangle with the first query and the first key.
        rows = lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 0)
        columns = lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 1)
        scores = jnp.where(columns <= rows, scores, lowest)
    return scores


def _grouped_bias(bias: jax.Array, heads: _Heads) -> jax.Array:
    """The bias broadcastable to (b, h, g, s, t)."""
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    key_heads, group = heads.key.shape[1], heads.query.shape[2]
    split = (key_heads, group) if bias.shape[1] != 1 else (1, 1)
    return bias.reshape(bias.shape[0], *split, *bias.shape[2:])


def _softmax(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(weights, log(sum(exp))) over keys; weights of 0 and -inf for rows in which everything is
    masked."""
    top = jnp.max(scores, axis=-1, keepdims=True, initial=-jnp.inf)
    top = jnp.where(jnp.isfinite(top), top, 0)
    parts = jnp.exp(scores - top)
    total = jnp.sum(parts, axis=-1, keepdims=True)
    return parts / jnp.where(total == 0, 1, total), jnp.log(total) + top


def _softmax_again(scores: jax.Array, log_sum: jax.Array) -> jax.Array:
    """The weights from the saved sums. Those are rounded, by more the larger the scores are, and
    gradients are small differences of large numbers: each row is made to sum to 1 again."""
    # A fully masked row attends to nothing; without this it would be exp(-inf + inf).
    parts = jnp.exp(scores - jnp.where(log_sum == -jnp.inf, 0, log_sum))
    total = jnp.sum(parts, axis=-1, keepdims=True)
    return parts / jnp.where(total == 0, 1, total)


def _kept(key: jax.Array, shape: Sequence[int], dropout_p: float) -> jax.Array:
    """Which weights survive dropout; the same for the same key."""
    return jax.random.uniform(key, tuple(shape), jnp.float32) < 1 - dropout_p


def _drop(weights: jax.Array, kept: Maybe, dropout_p: float) -> jax.Array:
    if kept is None:
        return weights
    scale = 0.0 if dropout_p == 1 else 1 / (1 - dropout_p)
    return jnp.where(kept, weights * jnp.asarray(scale, weights.dtype), 0)


@lowers("_scaled_dot_product_fused_attention_overrideable", static_numbers=True, random=True)
def fused_attention(
    call: Call,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_bias: Maybe = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[jax.Array | int | None, ...]:
    heads = _heads(query, key, value)
    scores = _scores(heads, attn_bias, is_causal, scale)
    weights, log_sum = _softmax(scores)
    kept = _kept(call.random_key(), scores.shape, dropout_p) if dropout_p else None
    weights = _drop(weights, kept, dropout_p)
    out = _over_keys(weights.astype(value.dtype), heads.value)
    batch, key_heads, group, length, _ = heads.query.shape
    seed = jnp.zeros((), jnp.int64) if call.seed is None else call.seed
    offset = jnp.zeros((), jnp.int64) if call.offset is None else call.offset
    return (
        out.reshape(*query.shape[:-1], value.shape[-1]),
        log_sum.reshape(batch, key_heads * group, length),
        None,
        None,
        query.shape[-2],
        key.shape[-2],
        seed,
        offset,
        None,
    )


@lowers("_scaled_dot_product_fused_attention_overrideable_backward", static_numbers=True)
def fused_attention_backward(
    call: Call,
    grad_out: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_bias: Maybe,
    grad_input_mask: Sequence[bool],
    out: jax.Array,
    logsumexp: jax.Array,
    cum_seq_q: Maybe,
    cum_seq_k: Maybe,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: jax.Array,
    philox_offset: jax.Array,
    *,
    scale: float | None = None,
) -> tuple[Maybe, ...]:
    heads = _heads(query, key, value)
    scores = _scores(heads, attn_bias, is_causal, scale)
    # The saved sums are float32, too coarse for float64.
    exact = scores.dtype == jnp.float64
    log_sum = logsumexp.reshape(*scores.shape[:-1], 1)
    weights = _softmax(scores)[0] if exact else _softmax_again(scores, log_sum)
    kept = None
    if dropout_p:
        draw = Call(call.op, call.out, philox_seed, philox_offset).random_key()
        kept = _kept(draw, scores.shape, dropout_p)
    grad = _as_groups(grad_out, heads)
    level = jnp.sum(wide(grad) * wide(_as_groups(out, heads)), axis=-1, keepdims=True)
    grad_value = _over_queries(_drop(weights, kept, dropout_p).astype(grad.dtype), grad)
    grad_scores = weights * (_drop(_onto_keys(grad, heads.value), kept, dropout_p) - level)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    narrow = (grad_scores * jnp.asarray(factor, grad_scores.dtype)).astype(query.dtype)
    grad_query = _over_keys(narrow, heads.key)
    grad_key = _over_queries(narrow, heads.query)
    grad_bias = None
    if attn_bias is not None and len(call.out) > 3:
        grad_bias = _sum_to(grad_scores, attn_bias, heads)
    return (
        grad_query.reshape(query.shape),
        grad_key.reshape(key.shape),
        grad_value.reshape(value.shape),
        grad_bias,
    )


def _as_groups(x: jax.Array, heads: _Heads) -> jax.Array:
    return _grouped(x[None] if x.ndim == 3 else x, heads.key.shape[1])


def _sum_to(grad_scores: jax.Array, bias: jax.Array, heads: _Heads) -> jax.Array:
    """The gradient of a bias that was broadcast over batch, heads or positions."""
    spread = _grouped_bias(bias, heads).shape
    axes = tuple(a for a in range(5) if spread[a] == 1 and grad_scores.shape[a] != 1)
    return jnp.sum(grad_scores, axis=axes, dtype=compute_dtype(grad_scores.dtype)).reshape(
        bias.shape
    )
