"""Loss functions and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings.precision import cast, promote_wide, scalar, wide
from tpu_perf.runtime.lowerings.registry import Call, Operand, lowers

Maybe = jax.Array | None
NONE, MEAN, SUM = 0, 1, 2  # torch's Reduction enum


def _reduced(loss: jax.Array, reduction: int) -> jax.Array:
    if reduction == NONE:
        return loss
    total = jnp.sum(loss)
    return total / jnp.asarray(loss.size, loss.dtype) if reduction == MEAN else total


def _spread(grad: jax.Array, like: jax.Array, reduction: int) -> jax.Array:
    """The gradient of a reduced loss, for each element."""
    return grad / jnp.asarray(max(like.size, 1), grad.dtype) if reduction == MEAN else grad


def _picked(
    classes: int, target: jax.Array, weight: Maybe, ignore_index: int, dtype: jax.typing.DTypeLike
) -> tuple[jax.Array, jax.Array]:
    """The class of each sample (0 where ignored) and its weight (0 where ignored)."""
    kept = target != ignore_index
    safe = jnp.where(kept, target, 0).astype(jnp.int32)
    if weight is None:
        return safe, kept.astype(dtype)
    own = weight.astype(dtype).at[safe].get(mode="promise_in_bounds", wrap_negative_indices=False)
    return safe, jnp.where(kept, own, 0)


def _nll(
    x: jax.Array,
    target: jax.Array,
    weight: Maybe,
    reduction: int,
    ignore_index: int,
    axis: int,
) -> tuple[jax.Array, jax.Array]:
    x = wide(x)
    safe, weights = _picked(x.shape[axis], target, weight, ignore_index, x.dtype)
    chosen = jnp.take_along_axis(
        x, jnp.expand_dims(safe, axis), axis, mode="promise_in_bounds"
    ).squeeze(axis)
    loss = jnp.where(weights == 0, jnp.zeros_like(chosen), -chosen * weights)
    if reduction == NONE:
        return loss, jnp.zeros((), x.dtype)
    total, share = jnp.sum(loss), jnp.sum(weights)
    return (total / share if reduction == MEAN else total), share


def _nll_backward(
    grad: jax.Array,
    x: jax.Array,
    target: jax.Array,
    weight: Maybe,
    reduction: int,
    ignore_index: int,
    total_weight: jax.Array,
    axis: int,
) -> jax.Array:
    grad = wide(grad)
    safe, weights = _picked(x.shape[axis], target, weight, ignore_index, grad.dtype)
    if reduction == MEAN:
        grad = grad / total_weight.astype(grad.dtype)
    # A comparison with an iota instead of a scatter: one pass that fuses into its consumer.
    classes = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    hit = classes == jnp.expand_dims(safe, axis)
    value = jnp.where(weights == 0, jnp.zeros_like(weights), -grad * weights)
    return jnp.where(hit, jnp.expand_dims(value, axis), jnp.zeros((), grad.dtype))


@lowers("nll_loss_forward", index_check="target:-1:self")
def nll_loss_forward(
    call: Call,
    self: jax.Array,
    target: jax.Array,
    weight: Maybe,
    reduction: int,
    ignore_index: int,
) -> tuple[jax.Array, jax.Array]:
    return _nll(self, target, weight, reduction, ignore_index, self.ndim - 1)


@lowers("nll_loss_backward")
def nll_loss_backward(
    call: Call,
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    weight: Maybe,
    reduction: int,
    ignore_index: int,
    total_weight: jax.Array,
) -> jax.Array:
    return _nll_backward(
        grad_output, self, target, weight, reduction, ignore_index, total_weight, self.ndim - 1
    )


@lowers("nll_loss2d_forward", index_check="target:1:self")
def nll_loss2d_forward(
    call: Call,
    self: jax.Array,
    target: jax.Array,
    weight: Maybe,
    reduction: int,
    ignore_index: int,
) -> tuple[jax.Array, jax.Array]:
    return _nll(self, target, weight, reduction, ignore_index, 1)


@lowers("nll_loss2d_backward")
def nll_loss2d_backward(
    call: Call,
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    weight: Maybe,
    reduction: int,
    ignore_index: int,
    total_weight: jax.Array,
) -> jax.Array:
    return _nll_backward(
        grad_output, self, target, weight, reduction, ignore_index, total_weight, 1
    )


@lowers("mse_loss")
def mse_loss(call: Call, self: jax.Array, target: jax.Array, reduction: int = MEAN) -> jax.Array:
    x, y = promote_wide(self, target)
    return _reduced((x - y) * (x - y), reduction)


@lowers("mse_loss_backward")
def mse_loss_backward(
    call: Call, grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int
) -> jax.Array:
    grad, x, y = promote_wide(grad_output, self, target)
    return 2 * (x - y) * _spread(grad, x - y, reduction)


@lowers("smooth_l1_loss")
def smooth_l1_loss(
    call: Call,
    self: jax.Array,
    target: jax.Array,
    reduction: int = MEAN,
    beta: Operand = 1.0,
) -> jax.Array:
    x, y = promote_wide(self, target)
    gap, edge = jnp.abs(x - y), scalar(beta, x)
    safe = jnp.where(edge == 0, 1, edge)
    near = scalar(0.5, x) * gap * gap / safe
    return _reduced(jnp.where(gap < edge, near, gap - scalar(0.5, x) * edge), reduction)


@lowers("smooth_l1_loss_backward")
def smooth_l1_loss_backward(
    call: Call,
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    reduction: int,
    beta: Operand,
) -> jax.Array:
    grad, x, y = promote_wide(grad_output, self, target)
    gap, edge = x - y, scalar(beta, x)
    safe = jnp.where(edge == 0, 1, edge)
    return jnp.where(jnp.abs(gap) < edge, gap / safe, jnp.sign(gap)) * _spread(grad, gap, reduction)


@lowers("huber_loss")
def huber_loss(
    call: Call,
    self: jax.Array,
    target: jax.Array,
    reduction: int = MEAN,
    delta: Operand = 1.0,
) -> jax.Array:
    x, y = promote_wide(self, target)
    gap, edge, half = jnp.abs(x - y), scalar(delta, x), scalar(0.5, x)
    far = edge * (gap - half * edge)
    return _reduced(jnp.where(gap <= edge, half * gap * gap, far), reduction)


@lowers("huber_loss_backward")
def huber_loss_backward(
    call: Call,
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    reduction: int,
    delta: Operand,
) -> jax.Array:
    grad, x, y = promote_wide(grad_output, self, target)
    gap, edge = x - y, scalar(delta, x)
    return jnp.clip(gap, -edge, edge) * _spread(grad, gap, reduction)


@lowers("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    call: Call,
    self: jax.Array,
    target: jax.Array,
    weight: Maybe = None,
    pos_weight: Maybe = None,
    reduction: int = MEAN,
) -> jax.Array:
    x, y = promote_wide(self, target)
    log_sigmoid = jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x)))
    if pos_weight is None:
        loss = (1 - y) * x - log_sigmoid
    else:
        loss = (1 - y) * x - ((cast(pos_weight, x.dtype) - 1) * y + 1) * log_sigmoid
    if weight is not None:
        loss = loss * cast(weight, x.dtype)
    return _reduced(loss, reduction)


@lowers("binary_cross_entropy")
def binary_cross_entropy(
    call: Call,
    self: jax.Array,
    target: jax.Array,
    weight: Maybe = None,
    reduction: int = MEAN,
) -> jax.Array:
    x, y = promote_wide(self, target)
    low = scalar(-100.0, x)  # torch's bound, so that log(0) * 0 is 0
    loss = (y - 1) * jnp.maximum(jnp.log1p(-x), low) - y * jnp.maximum(jnp.log(x), low)
    if weight is not None:
        loss = loss * cast(weight, x.dtype)
    return _reduced(loss, reduction)


@lowers("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    call: Call,
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    weight: Maybe = None,
    reduction: int = MEAN,
) -> jax.Array:
    grad, x, y = promote_wide(grad_output, self, target)
    steep = (x - y) / jnp.maximum((1 - x) * x, scalar(1e-12, x))
    if weight is not None:
        steep = steep * cast(weight, x.dtype)
    return steep * _spread(grad, x, reduction)


@lowers("soft_margin_loss")
def soft_margin_loss(
    call: Call, self: jax.Array, target: jax.Array, reduction: int = MEAN
) -> jax.Array:
    x, y = promote_wide(self, target)
    return _reduced(jnp.log1p(jnp.exp(-x * y)), reduction)


@lowers("soft_margin_loss_backward")
def soft_margin_loss_backward(
    call: Call, grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int
) -> jax.Array:
    grad, x, y = promote_wide(grad_output, self, target)
    return -y * lax.logistic(-x * y) * _spread(grad, x, reduction)
