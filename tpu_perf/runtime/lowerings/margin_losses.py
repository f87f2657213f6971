"""Margin losses over classes, with their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from tpu_perf.runtime.lowerings.losses import MEAN, NONE
from tpu_perf.runtime.lowerings.precision import at_least_1d, cast, wide
from tpu_perf.runtime.lowerings.registry import Call, Operand, lowers

Maybe = jax.Array | None


def _reduced(rows: jax.Array, reduction: int) -> jax.Array:
    if reduction == NONE:
        return rows
    return jnp.mean(rows) if reduction == MEAN else jnp.sum(rows)


def _pull(loss: Callable[..., jax.Array], x: jax.Array, grad: jax.Array) -> jax.Array:
    """The gradient of a loss of x."""
    value, pull = jax.vjp(loss, x)
    made: jax.Array = pull(cast(grad, value.dtype).reshape(value.shape))[0]
    return made


def _multi_margin(
    x: jax.Array, target: jax.Array, p: Operand, margin: Operand, weight: Maybe, reduction: int
) -> jax.Array:
    lead = x.shape[:-1]
    rows = at_least_1d(x).reshape(math.prod(lead), -1)
    index = target.reshape(-1).astype(jnp.int32)
    picked = jnp.take_along_axis(rows, index[:, None], axis=-1, mode="clip")
    gap = cast(margin, x.dtype) - picked + rows
    gap = jnp.where(gap > 0, gap, 0)  # no gradient at 0, as torch has it
    loss = jnp.where(cast(p, x.dtype) == 1, gap, gap * gap)
    if weight is not None:
        loss = loss * cast(weight, x.dtype)[index][:, None]
    own = index[:, None] == jnp.arange(rows.shape[1], dtype=jnp.int32)
    each = jnp.sum(jnp.where(own, 0, loss), axis=-1) / rows.shape[1]
    return _reduced(each.reshape(lead), reduction)


@lowers("multi_margin_loss", index_check="target:-1:self")
def multi_margin_loss(
    call: Call,
    self: jax.Array,
    target: jax.Array,
    p: Operand = 1,
    margin: Operand = 1,
    weight: Maybe = None,
    reduction: int = MEAN,
) -> jax.Array:
    return _multi_margin(wide(self), target, p, margin, weight, reduction)


@lowers("multi_margin_loss_backward")
def multi_margin_loss_backward(
    call: Call,
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    p: Operand,
    margin: Operand,
    weight: Maybe = None,
    reduction: int = MEAN,
) -> jax.Array:
    def loss(x: jax.Array) -> jax.Array:
        return _multi_margin(x, target, p, margin, weight, reduction)

    return _pull(loss, wide(self), grad_output)


def _multilabel_margin(
    x: jax.Array, target: jax.Array, reduction: int
) -> tuple[jax.Array, jax.Array]:
    """The loss, and which classes are among each row's targets (those before its first -1)."""
    lead = x.shape[:-1]
    rows = at_least_1d(x).reshape(math.prod(lead), -1)
    labels = target.reshape(rows.shape).astype(jnp.int32)
    given = jnp.cumsum(labels < 0, axis=-1) == 0
    classes = jnp.arange(rows.shape[1], dtype=jnp.int32)
    wanted = jnp.any((labels[:, :, None] == classes) & given[:, :, None], axis=1)
    picked = jnp.take_along_axis(rows, jnp.where(given, labels, 0), axis=-1, mode="clip")
    gap = 1 - picked[:, :, None] + rows[:, None, :]
    counts = given[:, :, None] & ~wanted[:, None, :] & (gap > 0)
    each = jnp.sum(jnp.where(counts, gap, 0), axis=(1, 2)) / rows.shape[1]
    return _reduced(each.reshape(lead), reduction), wanted.reshape(x.shape)


@lowers("multilabel_margin_loss_forward")
def multilabel_margin_loss(
    call: Call, self: jax.Array, target: jax.Array, reduction: int
) -> tuple[jax.Array, jax.Array]:
    return _multilabel_margin(wide(self), target, reduction)


@lowers("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    call: Call,
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    reduction: int,
    is_target: jax.Array,
) -> jax.Array:
    return _pull(lambda x: _multilabel_margin(x, target, reduction)[0], wide(self), grad_output)
