"""Functions of one tensor, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from tpu_perf.runtime.lowerings.precision import (
    is_complex,
    is_float,
    is_inexact,
    wide,
    wide_float,
)
from tpu_perf.runtime.lowerings.registry import Call, lowers

Unary = Callable[[jax.Array], jax.Array]


def _exp2(x: jax.Array) -> jax.Array:
    return jnp.exp2(x)


def _sinc(x: jax.Array) -> jax.Array:
    scaled = x * jnp.asarray(jnp.pi, x.dtype)
    return jnp.where(x == 0, jnp.ones_like(x), jnp.sin(scaled) / jnp.where(x == 0, 1, scaled))


def _entr(x: jax.Array) -> jax.Array:
    inside = -x * jnp.log(x)
    outside = jnp.where(x == 0, jnp.zeros_like(x), jnp.full_like(x, -jnp.inf))
    return jnp.where(jnp.isnan(x), x, jnp.where(x > 0, inside, outside))


def _erfcx(x: jax.Array) -> jax.Array:
    # exp(x^2) * erfc(x) overflows for large x, where a continued fraction's first terms suffice.
    small = jnp.exp(x * x) * lax.erfc(x)
    inverse = 1 / (x * x)
    large = (1 - inverse * (0.5 - inverse * (0.75 - 1.875 * inverse))) / (
        x * jnp.asarray(jnp.sqrt(jnp.pi), x.dtype)
    )
    return jnp.where(x > 8, large, small)


def _digamma(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), special.digamma(x))


#: Functions that map integers to floats.
_FLOATING: dict[str, Unary] = {
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "digamma": _digamma,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "exp": jnp.exp,
    "exp2": _exp2,
    "expm1": jnp.expm1,
    "i0": special.i0,
    "lgamma": lax.lgamma,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "rsqrt": lambda x: lax.rsqrt(x),
    "sigmoid": lambda x: jax.nn.sigmoid(x),
    "sin": jnp.sin,
    "sinc": _sinc,
    "sinh": jnp.sinh,
    "special_entr": _entr,
    "special_erfcx": _erfcx,
    "special_i0e": special.i0e,
    "special_i1": special.i1,
    "special_i1e": special.i1e,
    "special_log_ndtr": special.log_ndtr,
    "special_ndtri": special.ndtri,
    "sqrt": jnp.sqrt,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
}


def _floating(function: Unary) -> Callable[[Call, jax.Array], jax.Array]:
    def lower(call: Call, self: jax.Array) -> jax.Array:
        return function(wide_float(self))

    return lower


for _name, _function in _FLOATING.items():
    lowers(_name)(_floating(_function))


@lowers("reciprocal")
def reciprocal(call: Call, self: jax.Array) -> jax.Array:
    x = wide_float(self)
    return jnp.ones_like(x) / x


def _unless_integral(function: Unary) -> Callable[[Call, jax.Array], jax.Array]:
    def lower(call: Call, self: jax.Array) -> jax.Array:
        return function(self) if is_float(self.dtype) else self

    return lower


for _name, _function in {"ceil": jnp.ceil, "floor": jnp.floor, "trunc": jnp.trunc,
                         "round": jnp.round}.items():  # fmt: skip
    lowers(_name)(_unless_integral(_function))


@lowers("round.decimals", static_numbers=True)
def round_decimals(call: Call, self: jax.Array, *, decimals: int) -> jax.Array:
    if not is_float(self.dtype):
        return self
    x = wide(self)
    if decimals == 0:
        return jnp.round(x)
    scale = jnp.asarray(10.0 ** abs(decimals), x.dtype)
    return jnp.round(x * scale) / scale if decimals > 0 else jnp.round(x / scale) * scale


@lowers("frexp.Tensor")
def frexp(call: Call, self: jax.Array) -> tuple[jax.Array, jax.Array]:
    fraction, exponent = jnp.frexp(wide(self))
    # Infinities and NaN have no exponent; the C library says 0, as for zero.
    return fraction, jnp.where(jnp.isfinite(self), exponent, 0)


@lowers("frac")
def frac(call: Call, self: jax.Array) -> jax.Array:
    return self - jnp.trunc(self)


@lowers("neg")
def neg(call: Call, self: jax.Array) -> jax.Array:
    return jnp.negative(self)


@lowers("_conj_physical", "_conj", "_conj_copy", "conj_physical")
def conj_physical(call: Call, self: jax.Array) -> jax.Array:
    return jnp.conj(self)


@lowers("_neg_view", "_neg_view_copy")
def neg_view(call: Call, self: jax.Array) -> jax.Array:
    return jnp.negative(self)


@lowers("abs")
def absolute(call: Call, self: jax.Array) -> jax.Array:
    return self if self.dtype == jnp.bool_ else jnp.abs(self)


@lowers("sign")
def sign(call: Call, self: jax.Array) -> jax.Array:
    if self.dtype == jnp.bool_:
        return self
    zero = jnp.zeros((), self.dtype)
    return (self > zero).astype(self.dtype) - (self < zero).astype(self.dtype)


@lowers("sgn")
def sgn(call: Call, self: jax.Array) -> jax.Array:
    if not is_complex(self.dtype):
        return sign(call, self)
    size = jnp.abs(self)
    return jnp.where(size == 0, 0, self / jnp.where(size == 0, 1, size))


@lowers("signbit")
def signbit(call: Call, self: jax.Array) -> jax.Array:
    return jnp.signbit(self) if is_float(self.dtype) else self < 0


@lowers("isnan")
def isnan(call: Call, self: jax.Array) -> jax.Array:
    return jnp.isnan(self)


@lowers("isinf")
def isinf(call: Call, self: jax.Array) -> jax.Array:
    return jnp.isinf(self)


@lowers("isposinf")
def isposinf(call: Call, self: jax.Array) -> jax.Array:
    return jnp.isposinf(self) if is_float(self.dtype) else jnp.zeros(self.shape, jnp.bool_)


@lowers("isneginf")
def isneginf(call: Call, self: jax.Array) -> jax.Array:
    return jnp.isneginf(self) if is_float(self.dtype) else jnp.zeros(self.shape, jnp.bool_)


@lowers("logical_not")
def logical_not(call: Call, self: jax.Array) -> jax.Array:
    return self == jnp.zeros((), self.dtype)


@lowers("bitwise_not")
def bitwise_not(call: Call, self: jax.Array) -> jax.Array:
    return jnp.bitwise_not(self)


@lowers("angle")
def angle(call: Call, self: jax.Array) -> jax.Array:
    if is_complex(self.dtype):
        return jnp.angle(self)
    x = wide_float(self)
    turned = jnp.where(x < 0, jnp.asarray(jnp.pi, x.dtype), jnp.zeros_like(x))
    return jnp.where(jnp.isnan(x), x, turned)


@lowers("nan_to_num", static_numbers=True)
def nan_to_num(
    call: Call,
    self: jax.Array,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> jax.Array:
    if not is_inexact(self.dtype):
        return self
    return jnp.nan_to_num(self, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)


@lowers("deg2rad")
def deg2rad(call: Call, self: jax.Array) -> jax.Array:
    x = wide_float(self)
    return x * jnp.asarray(jnp.pi / 180, x.dtype)


@lowers("rad2deg")
def rad2deg(call: Call, self: jax.Array) -> jax.Array:
    x = wide_float(self)
    return x * jnp.asarray(180 / jnp.pi, x.dtype)


@lowers("logit")
def logit(call: Call, self: jax.Array, eps: Any = None) -> jax.Array:
    x = wide_float(self)
    if eps is not None:
        from tpu_perf.runtime.lowerings.precision import scalar

        low = scalar(eps, x)
        x = jnp.clip(x, low, 1 - low)
    return jnp.log(x / (1 - x))


@lowers("polygamma", static_numbers=True)
def polygamma(call: Call, n: int, self: jax.Array) -> jax.Array:
    x = wide_float(self)
    if n == 0:
        return _digamma(x)
    order = jnp.asarray(n + 1, x.dtype)
    sign = 1 if n % 2 else -1
    size = jnp.exp(lax.lgamma(order))
    right = sign * size * special.zeta(order, jnp.where(x < 0.5, 1 - x, x))
    # The zeta function only covers the right half; the left one is its reflection, whose cotangent
    # needs the distance to the nearest pole alone.
    cotangent = 1 / jnp.tan(jnp.asarray(jnp.pi, x.dtype) * (x - jnp.round(x)))
    first, *rest = _cotangent_derivative(n)
    turned = jnp.full_like(x, first)
    for term in rest:
        turned = turned * cotangent + term
    turned = -(jnp.pi ** (n + 1)) * turned
    return jnp.where(x < 0.5, turned - sign * right, right)


def _cotangent_derivative(n: int) -> list[float]:
    """The n-th derivative of cot as a polynomial in cot, highest power first."""
    found = np.polynomial.Polynomial([0, 1])
    for _ in range(n):
        found = -found.deriv() * np.polynomial.Polynomial([1, 0, 1])
    return [float(c) for c in found.coef[::-1]]


@lowers("mvlgamma", static_numbers=True)
def mvlgamma(call: Call, self: jax.Array, p: int) -> jax.Array:
    return special.multigammaln(wide_float(self), p)


@lowers("view_as_real", "view_as_real_copy")
def view_as_real(call: Call, self: jax.Array) -> jax.Array:
    return jnp.stack([self.real, self.imag], axis=-1)


@lowers("view_as_complex", "view_as_complex_copy")
def view_as_complex(call: Call, self: jax.Array) -> jax.Array:
    return lax.complex(self[..., 0], self[..., 1])
