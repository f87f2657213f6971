"""Softmax, layer, group, batch and root-mean-square norms, and their gradients, in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
from jax import lax

from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.lowerings.precision import at_least_1d, cast, wide, wide_float, wrap_dim
from tpu_perf.runtime.lowerings.registry import Call, lowers

Maybe = jax.Array | None


def _top(x: jax.Array, dim: int) -> jax.Array:
    return jnp.max(x, axis=dim, keepdims=True, initial=-jnp.inf)


@lowers("_softmax")
def softmax(call: Call, self: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    x = at_least_1d(wide(self))
    dim = wrap_dim(dim, x.ndim)
    grown = jnp.exp(x - _top(x, dim))
    return (grown / jnp.sum(grown, axis=dim, keepdims=True)).reshape(self.shape)


@lowers("_safe_softmax")
def safe_softmax(
    call: Call, self: jax.Array, dim: int, dtype: torch.dtype | None = None
) -> jax.Array:
    x = wide_float(self) if dtype is None else cast(self, numpy_dtype(dtype))
    made = softmax(call, x, dim, False)
    empty = jnp.all(x == -jnp.inf, axis=wrap_dim(dim, x.ndim) if x.ndim else None, keepdims=True)
    return jnp.where(empty, 0, made)


@lowers("_log_softmax")
def log_softmax(call: Call, self: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    x = at_least_1d(wide(self))
    dim = wrap_dim(dim, x.ndim)
    shifted = x - _top(x, dim)
    total = jnp.log(jnp.sum(jnp.exp(shifted), axis=dim, keepdims=True))
    return (shifted - total).reshape(self.shape)


@lowers("_softmax_backward_data")
def softmax_backward(
    call: Call, grad_output: jax.Array, output: jax.Array, dim: int, input_dtype: torch.dtype
) -> jax.Array:
    grad, out = at_least_1d(wide(grad_output)), at_least_1d(wide(output))
    weighted = grad * out
    total = jnp.sum(weighted, axis=wrap_dim(dim, out.ndim), keepdims=True)
    return (weighted - out * total).reshape(output.shape)


@lowers("_log_softmax_backward_data")
def log_softmax_backward(
    call: Call, grad_output: jax.Array, output: jax.Array, dim: int, input_dtype: torch.dtype
) -> jax.Array:
    grad, out = at_least_1d(wide(grad_output)), at_least_1d(wide(output))
    total = jnp.sum(grad, axis=wrap_dim(dim, out.ndim), keepdims=True)
    return (grad - jnp.exp(out) * total).reshape(output.shape)


def moments(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance with dims kept."""
    count = jnp.asarray(math.prod(x.shape[a] for a in axes), x.dtype)
    mean = jnp.sum(x, axis=axes, keepdims=True) / count
    away = x - mean
    return mean, jnp.sum(away * away, axis=axes, keepdims=True) / count


def _last(ndim: int, count: int) -> tuple[int, ...]:
    return tuple(range(ndim - count, ndim))


@lowers("native_layer_norm", static_numbers=True)
def native_layer_norm(
    call: Call,
    input: jax.Array,
    normalized_shape: Sequence[int],
    weight: Maybe,
    bias: Maybe,
    eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x = wide(input)
    mean, variance = moments(x, _last(x.ndim, len(normalized_shape)))
    rstd = lax.rsqrt(variance + jnp.asarray(eps, x.dtype))
    out = (x - mean) * rstd
    if weight is not None:
        out = out * cast(weight, x.dtype)
    if bias is not None:
        out = out + cast(bias, x.dtype)
    return out, mean, rstd


@lowers("native_layer_norm_backward")
def native_layer_norm_backward(
    call: Call,
    grad_out: jax.Array,
    input: jax.Array,
    normalized_shape: Sequence[int],
    mean: jax.Array,
    rstd: jax.Array,
    weight: Maybe,
    bias: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    x, grad = wide(input), wide(grad_out)
    inner = _last(x.ndim, len(normalized_shape))
    outer = tuple(range(x.ndim - len(normalized_shape)))
    kept = x.shape[: len(outer)] + (1,) * len(inner)
    center, scale = cast(mean, x.dtype).reshape(kept), cast(rstd, x.dtype).reshape(kept)
    normal = (x - center) * scale
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        inward = grad if weight is None else grad * cast(weight, x.dtype)
        count = jnp.asarray(math.prod(normalized_shape), x.dtype)
        level = jnp.sum(inward, axis=inner, keepdims=True) / count
        slope = jnp.sum(inward * normal, axis=inner, keepdims=True) / count
        grad_input = (inward - level - normal * slope) * scale
    if output_mask[1] and weight is not None:
        grad_weight = jnp.sum(grad * normal, axis=outer)
    if output_mask[2]:
        grad_bias = jnp.sum(grad, axis=outer)
    return grad_input, grad_weight, grad_bias


@lowers("_fused_rms_norm", static_numbers=True)
def fused_rms_norm(
    call: Call,
    input: jax.Array,
    normalized_shape: Sequence[int],
    weight: Maybe,
    eps: float | None,
) -> tuple[jax.Array, jax.Array]:
    x = wide(input)
    axes = _last(x.ndim, len(normalized_shape))
    floor = torch.finfo(call.out[0].dtype).eps if eps is None else eps
    count = jnp.asarray(math.prod(normalized_shape), x.dtype)
    power = jnp.sum(x * x, axis=axes, keepdims=True) / count
    rstd = lax.rsqrt(power + jnp.asarray(floor, x.dtype))
    out = x * rstd
    return (out if weight is None else out * cast(weight, x.dtype)), rstd


@lowers("_fused_rms_norm_backward")
def fused_rms_norm_backward(
    call: Call,
    grad_out: jax.Array,
    input: jax.Array,
    normalized_shape: Sequence[int],
    rstd: jax.Array,
    weight: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe]:
    x, grad = wide(input), wide(grad_out)
    inner = _last(x.ndim, len(normalized_shape))
    outer = tuple(range(x.ndim - len(normalized_shape)))
    scale = jnp.conj(cast(rstd, x.dtype)).reshape(x.shape[: len(outer)] + (1,) * len(inner))
    normal = jnp.conj(x) * scale
    grad_input = grad_weight = None
    if output_mask[0]:
        inward = grad if weight is None else grad * jnp.conj(cast(weight, x.dtype))
        count = jnp.asarray(math.prod(normalized_shape), x.dtype)
        slope = jnp.sum(inward * normal, axis=inner, keepdims=True) / count
        grad_input = (inward - normal * slope) * scale
    if output_mask[1] and weight is not None:
        grad_weight = jnp.sum(grad * normal, axis=outer)
    return grad_input, grad_weight


@lowers("native_group_norm", static_numbers=True)
def native_group_norm(
    call: Call,
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x = wide(input).reshape(N, group, C // group, HxW)
    mean, variance = moments(x, (2, 3))
    rstd = lax.rsqrt(variance + jnp.asarray(eps, x.dtype))
    out = (x - mean) * rstd
    if weight is not None:
        out = out * cast(weight, x.dtype).reshape(group, C // group, 1)
    if bias is not None:
        out = out + cast(bias, x.dtype).reshape(group, C // group, 1)
    return out.reshape(input.shape), mean.reshape(N, group), rstd.reshape(N, group)


@lowers("native_group_norm_backward")
def native_group_norm_backward(
    call: Call,
    grad_out: jax.Array,
    input: jax.Array,
    mean: jax.Array,
    rstd: jax.Array,
    weight: Maybe,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    split = (N, group, C // group, HxW)
    x, grad = wide(input).reshape(split), wide(grad_out).reshape(split)
    scale = cast(rstd, x.dtype).reshape(N, group, 1, 1)
    normal = (x - cast(mean, x.dtype).reshape(N, group, 1, 1)) * scale
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        inward = grad
        if weight is not None:
            inward = grad * cast(weight, x.dtype).reshape(group, C // group, 1)
        count = jnp.asarray(C // group * HxW, x.dtype)
        level = jnp.sum(inward, axis=(2, 3), keepdims=True) / count
        slope = jnp.sum(inward * normal, axis=(2, 3), keepdims=True) / count
        grad_input = ((inward - level - normal * slope) * scale).reshape(input.shape)
    if output_mask[1]:
        grad_weight = jnp.sum(grad * normal, axis=(0, 3)).reshape(C)
    if output_mask[2]:
        grad_bias = jnp.sum(grad, axis=(0, 3)).reshape(C)
    return grad_input, grad_weight, grad_bias


@lowers("_weight_norm_interface_backward")
def weight_norm_backward(
    call: Call,
    grad_w: jax.Array,
    saved_v: jax.Array,
    saved_g: jax.Array,
    saved_norms: jax.Array,
    dim: int,
) -> tuple[jax.Array, jax.Array]:
    """Gradients of direction and length of a weight w = g * v / |v|."""
    others = tuple(i for i in range(saved_v.ndim) if i != dim % saved_v.ndim)
    grad, direction = wide(grad_w), wide(saved_v)
    length, norms = wide(saved_g), wide(saved_norms)
    along = jnp.sum(grad * direction, axis=others, keepdims=True)
    return length / norms * (grad - direction * along / (norms * norms)), along / norms
