"""Activation functions and their gradients, computed in float32 for the narrow floats."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings.precision import cast, promote_wide, scalar, wide
from tpu_perf.runtime.lowerings.registry import Call, Operand, lowers

_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715


@lowers("gelu")
def gelu(call: Call, self: jax.Array, *, approximate: str = "none") -> jax.Array:
    x = wide(self)
    if approximate == "tanh":
        inner = scalar(_TANH_SCALE, x) * (x + scalar(_TANH_CUBE, x) * x * x * x)
        return scalar(0.5, x) * x * (1 + jnp.tanh(inner))
    return scalar(0.5, x) * x * (1 + lax.erf(x * scalar(math.sqrt(0.5), x)))


@lowers("gelu_backward")
def gelu_backward(
    call: Call, grad_output: jax.Array, self: jax.Array, *, approximate: str = "none"
) -> jax.Array:
    grad, x = promote_wide(grad_output, self)
    half = scalar(0.5, x)
    if approximate == "tanh":
        inner = scalar(_TANH_SCALE, x) * (x + scalar(_TANH_CUBE, x) * x * x * x)
        tanh = jnp.tanh(inner)
        steep = scalar(_TANH_SCALE, x) * (1 + scalar(3 * _TANH_CUBE, x) * x * x)
        return grad * (half * (1 + tanh) + half * x * (1 - tanh * tanh) * steep)
    below = half * (1 + lax.erf(x * scalar(math.sqrt(0.5), x)))
    density = jnp.exp(-half * x * x) * scalar(1 / math.sqrt(2 * math.pi), x)
    return grad * (below + x * density)


@lowers("relu")
def relu(call: Call, self: jax.Array) -> jax.Array:
    return jnp.maximum(self, jnp.zeros((), self.dtype))


@lowers("threshold")
def threshold(call: Call, self: jax.Array, threshold: Operand, value: Operand) -> jax.Array:
    return jnp.where(self <= cast(threshold, self.dtype), cast(value, self.dtype), self)


@lowers("threshold_backward")
def threshold_backward(
    call: Call, grad_output: jax.Array, self: jax.Array, threshold: Operand
) -> jax.Array:
    zero = jnp.zeros((), grad_output.dtype)
    return jnp.where(self <= cast(threshold, self.dtype), zero, grad_output)


@lowers("silu")
def silu(call: Call, self: jax.Array) -> jax.Array:
    x = wide(self)
    return x * lax.logistic(x)


@lowers("silu_backward")
def silu_backward(call: Call, grad_output: jax.Array, self: jax.Array) -> jax.Array:
    grad, x = promote_wide(grad_output, self)
    gate = lax.logistic(x)
    return grad * gate * (1 + x * (1 - gate))


@lowers("sigmoid_backward")
def sigmoid_backward(call: Call, grad_output: jax.Array, output: jax.Array) -> jax.Array:
    grad, out = promote_wide(grad_output, output)
    return grad * jnp.conj((1 - out) * out)


@lowers("tanh_backward")
def tanh_backward(call: Call, grad_output: jax.Array, output: jax.Array) -> jax.Array:
    grad, out = promote_wide(grad_output, output)
    return grad * jnp.conj(1 - out * out)


@lowers("logit_backward")
def logit_backward(
    call: Call, grad_output: jax.Array, self: jax.Array, eps: Operand | None = None
) -> jax.Array:
    grad, x = promote_wide(grad_output, self)
    slope = grad / (x * (1 - x))
    if eps is None:
        return jnp.where((x < 0) | (x > 1), jnp.nan, slope)
    low = scalar(eps, x)
    return jnp.where((x < low) | (x > 1 - low), 0, slope)


@lowers("leaky_relu")
def leaky_relu(call: Call, self: jax.Array, negative_slope: Operand = 0.01) -> jax.Array:
    x = wide(self)
    return jnp.where(x > 0, x, x * scalar(negative_slope, x))


@lowers("leaky_relu_backward")
def leaky_relu_backward(
    call: Call,
    grad_output: jax.Array,
    self: jax.Array,
    negative_slope: Operand,
    self_is_result: bool,
) -> jax.Array:
    grad, x = promote_wide(grad_output, self)
    return jnp.where(x > 0, grad, grad * scalar(negative_slope, x))


@lowers("_prelu_kernel")
def prelu(call: Call, self: jax.Array, weight: jax.Array) -> jax.Array:
    x, slope = promote_wide(self, weight)
    return jnp.where(x > 0, x, x * slope)


@lowers("_prelu_kernel_backward")
def prelu_backward(
    call: Call, grad_output: jax.Array, self: jax.Array, weight: jax.Array
) -> tuple[jax.Array, jax.Array]:
    grad, x, slope = promote_wide(grad_output, self, weight)
    return jnp.where(x > 0, grad, slope * grad), jnp.where(x > 0, 0, x * grad)


@lowers("elu")
def elu(
    call: Call,
    self: jax.Array,
    alpha: Operand = 1,
    scale: Operand = 1,
    input_scale: Operand = 1,
) -> jax.Array:
    x = wide(self)
    bent = jnp.expm1(x * scalar(input_scale, x)) * scalar(alpha, x)
    return jnp.where(x <= 0, bent, x) * scalar(scale, x)


@lowers("elu_backward")
def elu_backward(
    call: Call,
    grad_output: jax.Array,
    alpha: Operand,
    scale: Operand,
    input_scale: Operand,
    is_result: bool,
    self_or_result: jax.Array,
) -> jax.Array:
    grad, x = promote_wide(grad_output, self_or_result)
    bent, whole, inner = (scalar(n, x) for n in (alpha, scale, input_scale))
    grown = x + bent * whole if is_result else bent * whole * jnp.exp(x * inner)
    return grad * jnp.where(x <= 0, inner * grown, whole)


@lowers("celu")
def celu(call: Call, self: jax.Array, alpha: Operand = 1.0) -> jax.Array:
    x = wide(self)
    a = scalar(alpha, x)
    return jnp.where(x > 0, x, a * jnp.expm1(x / a))


@lowers("hardtanh")
def hardtanh(call: Call, self: jax.Array, min_val: Operand = -1, max_val: Operand = 1) -> jax.Array:
    return jnp.clip(self, cast(min_val, self.dtype), cast(max_val, self.dtype))


@lowers("hardtanh_backward")
def hardtanh_backward(
    call: Call, grad_output: jax.Array, self: jax.Array, min_val: Operand, max_val: Operand
) -> jax.Array:
    outside = (self <= scalar(min_val, self)) | (self >= scalar(max_val, self))
    return jnp.where(outside, jnp.zeros((), grad_output.dtype), grad_output)


@lowers("hardsigmoid")
def hardsigmoid(call: Call, self: jax.Array) -> jax.Array:
    x = wide(self)
    return jnp.clip(x + 3, 0, 6) / 6


@lowers("hardsigmoid_backward")
def hardsigmoid_backward(call: Call, grad_output: jax.Array, self: jax.Array) -> jax.Array:
    grad, x = promote_wide(grad_output, self)
    return jnp.where((x > -3) & (x < 3), grad / 6, jnp.zeros_like(grad))


@lowers("hardswish")
def hardswish(call: Call, self: jax.Array) -> jax.Array:
    x = wide(self)
    return x * jnp.clip(x + 3, 0, 6) / 6


@lowers("hardswish_backward")
def hardswish_backward(call: Call, grad_output: jax.Array, self: jax.Array) -> jax.Array:
    grad, x = promote_wide(grad_output, self)
    return jnp.where(x <= -3, 0, jnp.where(x < 3, grad * (x / 3 + scalar(0.5, x)), grad))


@lowers("softplus")
def softplus(call: Call, self: jax.Array, beta: Operand = 1, threshold: Operand = 20) -> jax.Array:
    x = wide(self)
    b = scalar(beta, x)
    return jnp.where(x * b > scalar(threshold, x), x, jnp.log1p(jnp.exp(x * b)) / b)


@lowers("softplus_backward")
def softplus_backward(
    call: Call, grad_output: jax.Array, self: jax.Array, beta: Operand, threshold: Operand
) -> jax.Array:
    grad, x = promote_wide(grad_output, self)
    scaled = x * scalar(beta, x)
    return jnp.where(scaled > scalar(threshold, x), grad, grad * lax.logistic(scaled))


@lowers("log_sigmoid_forward")
def log_sigmoid_forward(call: Call, self: jax.Array) -> tuple[jax.Array, jax.Array]:
    x = wide(self)
    small = jnp.exp(-jnp.abs(x))
    # The CPU keeps exp(-|x|) for the gradient; other devices keep an empty buffer.
    buffer = small if call.out[1].shape == x.shape else jnp.zeros((0,), x.dtype)
    return jnp.minimum(x, 0) - jnp.log1p(small), buffer


@lowers("log_sigmoid_backward")
def log_sigmoid_backward(
    call: Call, grad_output: jax.Array, self: jax.Array, buffer: jax.Array
) -> jax.Array:
    grad, x = promote_wide(grad_output, self)
    return grad * lax.logistic(-x)


@lowers("mish")
def mish(call: Call, self: jax.Array) -> jax.Array:
    x = wide(self)
    return x * jnp.tanh(jax.nn.softplus(x))


@lowers("mish_backward")
def mish_backward(call: Call, grad_output: jax.Array, self: jax.Array) -> jax.Array:
    grad, x = promote_wide(grad_output, self)
    tanh = jnp.tanh(jax.nn.softplus(x))
    return grad * (tanh + x * lax.logistic(x) * (1 - tanh * tanh))


@lowers("softshrink")
def softshrink(call: Call, self: jax.Array, lambd: Operand = 0.5) -> jax.Array:
    x = wide(self)
    edge = scalar(lambd, x)
    inside = jnp.where(jnp.isnan(x), x, jnp.zeros_like(x))
    return jnp.where(x > edge, x - edge, jnp.where(x < -edge, x + edge, inside))


@lowers("hardshrink")
def hardshrink(call: Call, self: jax.Array, lambd: Operand = 0.5) -> jax.Array:
    edge = cast(lambd, self.dtype)
    return jnp.where((self >= -edge) & (self <= edge), jnp.zeros_like(self), self)


@lowers("softshrink_backward")
def softshrink_backward(
    call: Call, grad_output: jax.Array, self: jax.Array, lambd: Operand
) -> jax.Array:
    edge = cast(lambd, self.dtype)
    inside = (self >= -edge) & (self <= edge)
    return jnp.where(inside, jnp.zeros((), grad_output.dtype), grad_output)


@lowers("hardshrink_backward")
def hardshrink_backward(
    call: Call, grad_out: jax.Array, self: jax.Array, lambd: Operand
) -> jax.Array:
    return softshrink_backward(call, grad_out, self, lambd)


@lowers("glu")
def glu(call: Call, self: jax.Array, dim: int = -1) -> jax.Array:
    value, gate = jnp.split(wide(self), 2, axis=dim)
    return value * lax.logistic(gate)


@lowers("glu_backward")
def glu_backward(call: Call, grad_output: jax.Array, self: jax.Array, dim: int) -> jax.Array:
    grad = wide(grad_output)
    value, gate = jnp.split(wide(self), 2, axis=dim)
    open_ = lax.logistic(gate)
    return jnp.concatenate([grad * open_, grad * value * open_ * (1 - open_)], axis=dim)
