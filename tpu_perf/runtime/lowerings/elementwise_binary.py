"""Arithmetic on two or three operands, element by element, with broadcasting."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from tpu_perf.runtime.lowerings.precision import (
    cast,
    is_float,
    is_inexact,
    promote_float,
    promote_wide,
    scalar,
    wide,
)
from tpu_perf.runtime.lowerings.registry import Call, Operand, lowers, promote, result_dtype


def _scaled(other: jax.Array, alpha: Operand) -> jax.Array:
    if isinstance(alpha, (int, float)) and alpha == 1:
        return other
    return other * scalar(alpha, other)


@lowers("add.Tensor", "add.Scalar")
def add(call: Call, self: Operand, other: Operand, alpha: Operand = 1) -> jax.Array:
    x, y = promote_wide(self, other)
    return x + _scaled(y, alpha)


@lowers("sub.Tensor", "sub.Scalar")
def sub(call: Call, self: Operand, other: Operand, alpha: Operand = 1) -> jax.Array:
    x, y = promote_wide(self, other)
    return x - _scaled(y, alpha)


@lowers("rsub.Tensor", "rsub.Scalar")
def rsub(call: Call, self: Operand, other: Operand, alpha: Operand = 1) -> jax.Array:
    return sub(call, other, self, alpha)


@lowers("mul.Tensor", "mul.Scalar")
def mul(call: Call, self: Operand, other: Operand) -> jax.Array:
    x, y = promote_wide(self, other)
    return x * y


@lowers("div.Tensor", "div.Scalar")
def div(call: Call, self: Operand, other: Operand) -> jax.Array:
    x, y = promote_float(self, other)
    return x / y


@lowers("div.Tensor_mode", "div.Scalar_mode")
def div_mode(
    call: Call, self: Operand, other: Operand, *, rounding_mode: str | None = None
) -> jax.Array:
    if rounding_mode is None:
        return div(call, self, other)
    if rounding_mode == "floor":
        return floor_divide(call, self, other)
    x, y = promote_wide(self, other)
    return jnp.trunc(x / y) if is_float(x.dtype) else lax.div(x, *_same_shape(x, y)[1:])


def _same_shape(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    shape = jnp.broadcast_shapes(x.shape, y.shape)
    return jnp.broadcast_to(x, shape), jnp.broadcast_to(y, shape)


@lowers("floor_divide", "floor_divide.Scalar")
def floor_divide(call: Call, self: Operand, other: Operand) -> jax.Array:
    x, y = _same_shape(*promote_wide(self, other))
    if not is_float(x.dtype):
        quotient, rest = lax.div(x, y), lax.rem(x, y)
        return jnp.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    # After torch's div_floor_floating: the quotient is rebuilt from the exact remainder.
    rest = lax.rem(x, y)
    quotient = (x - rest) / y
    quotient = jnp.where((rest != 0) & ((y < 0) != (rest < 0)), quotient - 1, quotient)
    floored = jnp.floor(quotient)
    floored = jnp.where(quotient - floored > 0.5, floored + 1, floored)
    whole = jnp.where(quotient != 0, floored, jnp.copysign(jnp.zeros_like(x), x / y))
    return jnp.where(y == 0, x / y, whole)


@lowers("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(call: Call, self: Operand, other: Operand) -> jax.Array:
    x, y = _same_shape(*promote_wide(self, other))
    rest = lax.rem(x, y)
    return jnp.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@lowers("fmod.Tensor", "fmod.Scalar")
def fmod(call: Call, self: Operand, other: Operand) -> jax.Array:
    return lax.rem(*_same_shape(*promote_wide(self, other)))


@lowers("pow.Tensor_Tensor", "pow.Scalar")
def power(call: Call, self: Operand, exponent: Operand) -> jax.Array:
    x, y = promote_wide(self, exponent)
    if is_inexact(x.dtype):
        return jnp.power(x, y)
    return _integer_power(x, y)


def _integer_power(x: jax.Array, y: jax.Array) -> jax.Array:
    if x.dtype == jnp.bool_:
        return x | ~y
    positive = jnp.power(x, jnp.maximum(y, 0))
    one = jnp.ones_like(positive)
    parity = jnp.where(y % 2 == 0, one, -one)
    inverse = jnp.where(x == 1, one, jnp.where(x == -1, parity, 0))
    return jnp.where(y < 0, inverse, positive) if jnp.issubdtype(x.dtype, jnp.signedinteger) else (
        positive
    )  # fmt: skip


@lowers("pow.Tensor_Scalar", static_numbers=True)
def power_static(call: Call, self: jax.Array, exponent: Any) -> jax.Array:
    dtype = result_dtype(self, exponent)
    if is_inexact(dtype) and not isinstance(exponent, complex):
        x = wide(cast(self, dtype))
        if exponent == 0.5:
            return jnp.sqrt(x)
        if exponent == -0.5:
            return lax.rsqrt(x)
        if float(exponent) in (1.0, 2.0, 3.0, -1.0, -2.0):
            return lax.integer_pow(x, int(exponent))
    return power(call, self, exponent)


@lowers("maximum")
def maximum(call: Call, self: Operand, other: Operand) -> jax.Array:
    return jnp.maximum(*promote(self, other))


@lowers("minimum")
def minimum(call: Call, self: Operand, other: Operand) -> jax.Array:
    return jnp.minimum(*promote(self, other))


@lowers("fmax")
def fmax(call: Call, self: Operand, other: Operand) -> jax.Array:
    return jnp.fmax(*promote(self, other))


@lowers("fmin")
def fmin(call: Call, self: Operand, other: Operand) -> jax.Array:
    return jnp.fmin(*promote(self, other))


@lowers("clamp")
def clamp(
    call: Call, self: jax.Array, min: Operand | None = None, max: Operand | None = None
) -> jax.Array:
    bounds = [b for b in (min, max) if b is not None]
    x, *_ = promote(self, *bounds)
    if min is not None:
        x = jnp.maximum(x, cast(min, x.dtype))
    if max is not None:
        x = jnp.minimum(x, cast(max, x.dtype))
    return x


@lowers("clamp.Tensor")
def clamp_tensor(
    call: Call, self: jax.Array, min: Operand | None = None, max: Operand | None = None
) -> jax.Array:
    return clamp(call, self, min, max)


@lowers("clamp_min", "clamp_min.Tensor")
def clamp_min(call: Call, self: jax.Array, min: Operand) -> jax.Array:
    return jnp.maximum(*promote(self, min))


@lowers("clamp_max", "clamp_max.Tensor")
def clamp_max(call: Call, self: jax.Array, max: Operand) -> jax.Array:
    return jnp.minimum(*promote(self, max))


@lowers("atan2")
def atan2(call: Call, self: Operand, other: Operand) -> jax.Array:
    return jnp.arctan2(*promote_float(self, other))


@lowers("hypot")
def hypot(call: Call, self: Operand, other: Operand) -> jax.Array:
    return jnp.hypot(*promote_wide(self, other))


@lowers("copysign.Tensor", "copysign.Scalar")
def copysign(call: Call, self: Operand, other: Operand) -> jax.Array:
    return jnp.copysign(*promote_float(self, other))


@lowers("nextafter")
def nextafter(call: Call, self: Operand, other: Operand) -> jax.Array:
    return jnp.nextafter(*promote(self, other))


@lowers("logaddexp")
def logaddexp(call: Call, self: Operand, other: Operand) -> jax.Array:
    return jnp.logaddexp(*promote_float(self, other))


@lowers("logaddexp2")
def logaddexp2(call: Call, self: Operand, other: Operand) -> jax.Array:
    return jnp.logaddexp2(*promote_float(self, other))


@lowers("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")
def xlogy(call: Call, self: Operand, other: Operand) -> jax.Array:
    x, y = promote_float(self, other)
    return jnp.where(jnp.isnan(y), y, jnp.where(x == 0, jnp.zeros_like(x), x * jnp.log(y)))


@lowers("special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar")
def xlog1py(call: Call, self: Operand, other: Operand) -> jax.Array:
    x, y = promote_float(self, other)
    return jnp.where(jnp.isnan(y), y, jnp.where(x == 0, jnp.zeros_like(x), x * jnp.log1p(y)))


@lowers("special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar")
def zeta(call: Call, self: Operand, other: Operand) -> jax.Array:
    return special.zeta(*promote_float(self, other))


@lowers("igamma")
def igamma(call: Call, self: Operand, other: Operand) -> jax.Array:
    return special.gammainc(*promote_float(self, other))


@lowers("igammac")
def igammac(call: Call, self: Operand, other: Operand) -> jax.Array:
    return special.gammaincc(*promote_float(self, other))


@lowers("gcd")
def gcd(call: Call, self: Operand, other: Operand) -> jax.Array:
    return jnp.gcd(*promote(self, other))


@lowers("lcm")
def lcm(call: Call, self: Operand, other: Operand) -> jax.Array:
    return jnp.lcm(*promote(self, other))


@lowers("heaviside")
def heaviside(call: Call, self: Operand, values: Operand) -> jax.Array:
    x, at_zero = promote(self, values)
    return jnp.where(x == 0, at_zero, (x > 0).astype(x.dtype))


@lowers("complex")
def complex_(call: Call, real: jax.Array, imag: jax.Array) -> jax.Array:
    return lax.complex(*_same_shape(real, imag))


@lowers("polar")
def polar(call: Call, abs: jax.Array, angle: jax.Array) -> jax.Array:
    size, turn = _same_shape(abs, angle)
    return lax.complex(size * jnp.cos(turn), size * jnp.sin(turn))


@lowers("addcmul")
def addcmul(
    call: Call, self: Operand, tensor1: Operand, tensor2: Operand, value: Operand = 1
) -> jax.Array:
    x, a, b = promote_wide(self, tensor1, tensor2)
    return x + _scaled(a, value) * b


@lowers("prims::fma")
def fma(call: Call, a: Operand, b: Operand, c: Operand) -> jax.Array:
    """What Dynamo makes of an in-place addcmul or addcdiv by a tensor."""
    x, y, z = promote_wide(a, b, c)
    return x * y + z


@lowers("addcdiv")
def addcdiv(
    call: Call, self: Operand, tensor1: Operand, tensor2: Operand, value: Operand = 1
) -> jax.Array:
    x, a, b = promote_wide(self, tensor1, tensor2)
    return x + _scaled(a, value) / b


@lowers("lerp.Scalar", "lerp.Tensor")
def lerp(call: Call, self: Operand, end: Operand, weight: Operand) -> jax.Array:
    x, y = promote_wide(self, end)
    w = cast(weight, x.dtype)
    return jnp.where(jnp.abs(w) < 0.5, x + w * (y - x), y - (y - x) * (1 - w))


@lowers("_foreach_addcmul.Tensor")
def foreach_addcmul(
    call: Call,
    self: list[jax.Array],
    tensor1: list[jax.Array],
    tensor2: list[jax.Array],
    scalars: jax.Array,
) -> list[jax.Array]:
    parts = zip(self, tensor1, tensor2, scalars, strict=True)
    return [addcmul(call, x, a, b, value) for x, a, b, value in parts]


@lowers("_foreach_addcdiv.Tensor")
def foreach_addcdiv(
    call: Call,
    self: list[jax.Array],
    tensor1: list[jax.Array],
    tensor2: list[jax.Array],
    scalars: jax.Array,
) -> list[jax.Array]:
    parts = zip(self, tensor1, tensor2, scalars, strict=True)
    return [addcdiv(call, x, a, b, value) for x, a, b, value in parts]


@lowers("_foreach_pow.ScalarAndTensor")
def foreach_pow(call: Call, self: Operand, exponent: list[jax.Array]) -> list[jax.Array]:
    return [power(call, self, e) for e in exponent]
