"""The many names under which torch normalizes over a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings.normalization import moments
from tpu_perf.runtime.lowerings.precision import cast, wide
from tpu_perf.runtime.lowerings.registry import Call, Operand, lowers

Maybe = jax.Array | None


def _running(old: jax.Array, new: jax.Array, momentum: Operand) -> jax.Array:
    """A running statistic after one batch."""
    share = cast(momentum, new.dtype)
    return cast(old, new.dtype) * (1 - share) + new * share


Norm = tuple[jax.Array, jax.Array, jax.Array]


def _batch_norm(
    call: Call,
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    center: Maybe,
    spread: Maybe,
    training: bool,
    momentum: Operand,
    eps: float,
) -> tuple[Norm, tuple[jax.Array, ...]]:
    """(output, saved mean, saved inverse deviation), and the new running statistics."""
    x = wide(input)
    axes = tuple(a for a in range(x.ndim) if a != 1)
    shape = tuple(x.shape[1] if a == 1 else 1 for a in range(x.ndim))
    running: tuple[jax.Array, ...] = ()
    if training:
        mean, variance = moments(x, axes)
        if center is not None and spread is not None:
            count = max(math.prod(x.shape[a] for a in axes), 1)
            unbiased = variance * jnp.asarray(count / max(count - 1, 1), x.dtype)
            running = (
                _running(center, mean.reshape(-1), momentum),
                _running(spread, unbiased.reshape(-1), momentum),
            )
    else:
        assert center is not None
        assert spread is not None
        mean, variance = (cast(s, x.dtype).reshape(shape) for s in (center, spread))
        running = (center, spread)
    rstd = lax.rsqrt(variance + jnp.asarray(eps, x.dtype))
    out = (x - mean) * rstd
    if weight is not None:
        out = out * cast(weight, x.dtype).reshape(shape)
    if bias is not None:
        out = out + cast(bias, x.dtype).reshape(shape)
    if not training:
        # What is saved then is never read; its size differs among torch's kernels.
        saved = jnp.zeros(call.out[1].shape if len(call.out) > 1 else (0,), x.dtype)
        return (out, saved, saved), running
    return (out, mean.reshape(-1), rstd.reshape(-1)), running


@lowers("native_batch_norm", static_numbers=True, mutates=(3, 4))
def native_batch_norm(
    call: Call,
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[jax.Array, ...]:
    made, running = _batch_norm(
        call, input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    return (*made, *running)


@lowers("_native_batch_norm_legit", static_numbers=True, mutates=(3, 4))
def native_batch_norm_legit(
    call: Call,
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: jax.Array,
    running_var: jax.Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[jax.Array, ...]:
    return native_batch_norm(
        call, input, weight, bias, running_mean, running_var, training, momentum, eps
    )


@lowers("_native_batch_norm_legit_functional", static_numbers=True)
def native_batch_norm_functional(
    call: Call,
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: jax.Array,
    running_var: jax.Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[jax.Array, ...]:
    return native_batch_norm(
        call, input, weight, bias, running_mean, running_var, training, momentum, eps
    )


@lowers("_native_batch_norm_legit.no_stats", static_numbers=True)
def native_batch_norm_no_stats(
    call: Call,
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> Norm:
    return _batch_norm(call, input, weight, bias, None, None, training, momentum, eps)[0]


@lowers("_native_batch_norm_legit_no_training", static_numbers=True)
def native_batch_norm_no_training(
    call: Call,
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: jax.Array,
    running_var: jax.Array,
    momentum: float,
    eps: float,
) -> Norm:
    return _batch_norm(call, input, weight, bias, running_mean, running_var, False, momentum, eps)[
        0
    ]


@lowers("native_batch_norm_backward", static_numbers=True)
def native_batch_norm_backward(
    call: Call,
    grad_out: jax.Array,
    input: jax.Array,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_invstd: Maybe,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    x, grad = wide(input), wide(grad_out)
    axes = tuple(a for a in range(x.ndim) if a != 1)
    shape = tuple(x.shape[1] if a == 1 else 1 for a in range(x.ndim))
    center, scale = save_mean, save_invstd
    if not train:
        assert running_mean is not None
        assert running_var is not None
        center = running_mean
        scale = lax.rsqrt(wide(running_var) + jnp.asarray(eps, x.dtype))
    assert center is not None
    assert scale is not None
    rstd = cast(scale, x.dtype).reshape(shape)
    normal = (x - cast(center, x.dtype).reshape(shape)) * rstd
    total = jnp.sum(grad, axis=axes, keepdims=True)
    slope = jnp.sum(grad * normal, axis=axes, keepdims=True)
    factor = rstd if weight is None else rstd * cast(weight, x.dtype).reshape(shape)
    inward = grad
    if train:
        count = jnp.asarray(max(math.prod(x.shape[a] for a in axes), 1), x.dtype)
        inward = grad - total / count - normal * (slope / count)
    grads = (inward * factor, slope.reshape(-1), total.reshape(-1))
    # torch's meta kernel makes all three, whatever the mask says.
    wanted = [True] * 3 if len(call.out) == 3 else output_mask
    return tuple(g if keep else None for g, keep in zip(grads, wanted, strict=True))
