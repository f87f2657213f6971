"""Fused optimizer steps and gradient scaling: ops that exist only as mutations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tpu_perf.runtime.lowerings.precision import cast, wide
from tpu_perf.runtime.lowerings.registry import Call, Operand, as_array, lowers

Arrays = list[jax.Array]
Maybe = jax.Array | None


def _power_gap(beta: Operand, step: jax.Array, dtype: Any) -> jax.Array:
    """1 - beta**step without the cancellation that computing it in float32 would have."""
    rate = cast(1 - as_array(beta).astype(jnp.float64), dtype)
    return -jnp.expm1(step.astype(dtype) * jnp.log1p(-rate))


def _unscaled(grad: jax.Array, scale: Maybe, dtype: Any) -> jax.Array:
    grad = cast(grad, dtype)
    return grad if scale is None else grad / cast(scale, dtype).reshape(())


def _unless(found_inf: Maybe, new: list[Arrays], old: list[Arrays]) -> list[Arrays]:
    """Old values where a gradient was not finite."""
    if found_inf is None:
        return new
    skip = found_inf.reshape(()) != 0
    return [
        [jnp.where(skip, b, cast(a, b.dtype)) for a, b in zip(*pair, strict=True)]
        for pair in zip(new, old, strict=True)
    ]


def _adam(
    decoupled: bool,
    self: Arrays,
    grads: Arrays,
    exp_avgs: Arrays,
    exp_avg_sqs: Arrays,
    max_exp_avg_sqs: Arrays,
    state_steps: Arrays,
    lr: Operand,
    beta1: Operand,
    beta2: Operand,
    weight_decay: Operand,
    eps: Operand,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Maybe,
    found_inf: Maybe,
) -> list[Arrays]:
    old = [self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs if amsgrad else []]
    new: list[Arrays] = [[], [], [], [], []]
    for i, (parameter, step) in enumerate(zip(self, state_steps, strict=True)):
        x = wide(parameter)
        rate, b1, b2, decay, tiny = (
            cast(n, x.dtype).reshape(()) for n in (lr, beta1, beta2, weight_decay, eps)
        )
        plain = _unscaled(grads[i], grad_scale, x.dtype)
        grad = -plain if maximize else plain
        if decoupled:
            x = x * (1 - rate * decay)
        else:
            grad = grad + x * decay
        average = cast(exp_avgs[i], x.dtype)
        average = average + (grad - average) * (1 - b1)
        square = cast(exp_avg_sqs[i], x.dtype) * b2 + grad * grad * (1 - b2)
        largest = square
        if amsgrad:
            largest = jnp.maximum(cast(max_exp_avg_sqs[i], x.dtype), square)
            new[4].append(largest)
        root = jnp.sqrt(_power_gap(beta2, step, x.dtype).reshape(()))
        stride = rate / _power_gap(beta1, step, x.dtype).reshape(())
        new[0].append(x - stride * average / (jnp.sqrt(largest) / root + tiny))
        new[1].append(plain)
        new[2].append(average)
        new[3].append(square)
    return _unless(found_inf, new, old)


def _fused_adam(decoupled: bool) -> Any:
    def lower(
        call: Call,
        self: Arrays,
        grads: Arrays,
        exp_avgs: Arrays,
        exp_avg_sqs: Arrays,
        max_exp_avg_sqs: Arrays,
        state_steps: Arrays,
        *,
        lr: Operand,
        beta1: Operand,
        beta2: Operand,
        weight_decay: Operand,
        eps: Operand,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Maybe = None,
        found_inf: Maybe = None,
    ) -> list[Arrays]:
        made = _adam(
            decoupled, self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr,
            beta1, beta2, weight_decay, eps, amsgrad, maximize, grad_scale, found_inf,
        )  # fmt: skip
        if not amsgrad:
            made[4] = list(max_exp_avg_sqs)
        return made

    return lower


for _name, _decoupled in (("_fused_adam_", False), ("_fused_adamw_", True)):
    lowers(f"{_name}.default", f"{_name}.tensor_lr", mutates=(0, 1, 2, 3, 4))(
        _fused_adam(_decoupled)
    )


@lowers("_fused_sgd_", "_fused_sgd_.tensor_lr", mutates=(0, 1, 2))
def fused_sgd(
    call: Call,
    self: Arrays,
    grads: Arrays,
    momentum_buffer_list: Arrays,
    *,
    weight_decay: Operand,
    momentum: Operand,
    lr: Operand,
    dampening: Operand,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Maybe = None,
    found_inf: Maybe = None,
) -> list[Arrays]:
    old = [self, grads, momentum_buffer_list]
    new: list[Arrays] = [[], [], []]
    for i, parameter in enumerate(self):
        x = wide(parameter)
        rate, decay, speed, damping = (
            cast(n, x.dtype).reshape(()) for n in (lr, weight_decay, momentum, dampening)
        )
        plain = _unscaled(grads[i], grad_scale, x.dtype)
        grad = (-plain if maximize else plain) + x * decay
        if momentum_buffer_list:
            kept = grad
            if not is_first_step:
                kept = cast(momentum_buffer_list[i], x.dtype) * speed + grad * (1 - damping)
            new[2].append(kept)
            grad = grad + kept * speed if nesterov else kept
        new[0].append(x - rate * grad)
        new[1].append(plain)
    return _unless(found_inf, new, old)


@lowers("_fused_adagrad_", "_fused_adagrad_.tensor_lr", mutates=(0, 1, 2))
def fused_adagrad(
    call: Call,
    self: Arrays,
    grads: Arrays,
    state_sums: Arrays,
    state_steps: Arrays,
    *,
    lr: Operand,
    lr_decay: Operand,
    weight_decay: Operand,
    eps: Operand,
    maximize: bool,
    grad_scale: Maybe = None,
    found_inf: Maybe = None,
) -> list[Arrays]:
    old = [self, grads, state_sums]
    new: list[Arrays] = [[], [], []]
    for i, (parameter, step) in enumerate(zip(self, state_steps, strict=True)):
        x = wide(parameter)
        rate, slowing, decay, tiny = (
            cast(n, x.dtype).reshape(()) for n in (lr, lr_decay, weight_decay, eps)
        )
        plain = _unscaled(grads[i], grad_scale, x.dtype)
        grad = (-plain if maximize else plain) + x * decay
        total = cast(state_sums[i], x.dtype) + grad * grad
        rate = rate / (1 + (cast(step, x.dtype).reshape(()) - 1) * slowing)
        new[0].append(x - rate * grad / (jnp.sqrt(total) + tiny))
        new[1].append(plain)
        new[2].append(total)
    made = _unless(found_inf, new, old)
    # The plain overload also declares its step counters written.
    return made if call.op.endswith("tensor_lr") else [*made, list(state_steps)]


@lowers("_amp_foreach_non_finite_check_and_unscale_", mutates=(0, 1))
def amp_unscale(
    call: Call, self: Arrays, found_inf: jax.Array, inv_scale: jax.Array
) -> tuple[Arrays, jax.Array]:
    found = found_inf.reshape(()) != 0
    for grad in self:
        found = found | ~jnp.all(jnp.isfinite(grad))
    factor = inv_scale.reshape(())
    scaled = [jnp.where(factor == 1, wide(g), wide(g) * cast(factor, wide(g).dtype)) for g in self]
    return scaled, found.astype(found_inf.dtype)


@lowers("_amp_update_scale_", mutates=(0, 1))
def amp_update_scale(
    call: Call,
    self: jax.Array,
    growth_tracker: jax.Array,
    found_inf: jax.Array,
    scale_growth_factor: Operand,
    scale_backoff_factor: Operand,
    growth_interval: int,
) -> tuple[jax.Array, jax.Array]:
    found = found_inf.reshape(()) != 0
    good = growth_tracker + 1
    due = good == growth_interval
    grown = self * cast(scale_growth_factor, self.dtype)
    grown = jnp.where(due & jnp.isfinite(grown), grown, self)
    scale = jnp.where(found, self * cast(scale_backoff_factor, self.dtype), grown)
    return scale, jnp.where(found | due, 0, good)
