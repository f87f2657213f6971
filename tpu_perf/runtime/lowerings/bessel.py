"""Bessel and Airy functions: Chebyshev series of their smooth parts, piece by piece.

Each function is written as elementary factors (powers, logarithms, phases) around parts that are
smooth on a piece of the axis. The series of a part are interpolated in float64, once per process,
from scipy's values at Chebyshev nodes, and are constants of the program.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from tpu_perf.runtime.lowerings.precision import wide_float
from tpu_perf.runtime.lowerings.registry import Call, lowers

#: Terms enough for float64 on every piece; the negligible ones are dropped.
_TERMS = 48
_SMALLEST = 1e-17

#: Where the series around 0 hands over to the ones around infinity.
_J_EDGE, _K_EDGE, _AIRY_BELOW, _AIRY_ABOVE = 8.0, 2.0, -4.0, 3.0

Part = Callable[[Any, Any], Any]


@functools.cache
def _series(part: Part, low: float, high: float) -> tuple[float, ...]:
    """Chebyshev coefficients of a part over [low, high]."""
    import scipy.special

    nodes = np.cos((np.arange(_TERMS) + 0.5) * np.pi / _TERMS)
    values = part(scipy.special, low + (nodes + 1) * (high - low) / 2)
    angles = np.outer(np.arange(_TERMS), (np.arange(_TERMS) + 0.5) * np.pi / _TERMS)
    found = 2 / _TERMS * np.cos(angles) @ values
    found[0] /= 2
    worth = np.flatnonzero(np.abs(found) > _SMALLEST * np.abs(found).max())
    return tuple(found[: worth[-1] + 1].tolist())


def _sum(part: Part, at: jax.Array, low: float = 0.0, high: float = 1.0) -> jax.Array:
    """A part's value, by Clenshaw's recurrence."""
    t = (2 * at - (low + high)) / (high - low)
    first = second = jnp.zeros_like(at)
    series = _series(part, low, high)
    for c in series[:0:-1]:
        first, second = 2 * t * first - second + c, first
    return t * first - second + series[0]


# Around 0, as functions of t = x^2; around infinity of u = (edge / x)^2.


def _j0_near(s: Any, t: Any) -> Any:
    return s.j0(np.sqrt(t))


def _j1_near(s: Any, t: Any) -> Any:
    return s.j1(np.sqrt(t)) / np.sqrt(t)


def _y0_near(s: Any, t: Any) -> Any:
    x = np.sqrt(t)
    return s.y0(x) - 2 / np.pi * np.log(x) * s.j0(x)


def _y1_near(s: Any, t: Any) -> Any:
    x = np.sqrt(t)
    return (s.y1(x) - 2 / np.pi * (np.log(x) * s.j1(x) - 1 / x)) / x


def _phases(order: int, sine: bool) -> Part:
    """The amplitude that goes with the cosine of the phase x - (2 order + 1) pi / 4 (for the
    second solution with its sine), and the one that goes with the other."""

    def part(s: Any, u: Any) -> Any:
        x = _J_EDGE / np.sqrt(u)
        phase = x - (2 * order + 1) * np.pi / 4
        j, y = s.jv(order, x), s.yv(order, x)
        size = np.sqrt(np.pi * x / 2)
        if sine:
            return size * x * (y * np.cos(phase) - j * np.sin(phase))
        return size * (j * np.cos(phase) + y * np.sin(phase))

    return part


_FAR = {(order, sine): _phases(order, sine) for order in (0, 1) for sine in (False, True)}


def _far(x: jax.Array, order: int) -> tuple[jax.Array, jax.Array]:
    """J and Y of an order for large x."""
    u = (_J_EDGE / x) ** 2
    phase = x - (2 * order + 1) * math.pi / 4
    cosine, sine = _sum(_FAR[order, False], u), _sum(_FAR[order, True], u) / x
    size = jnp.sqrt(2 / (math.pi * x))
    j = size * (cosine * jnp.cos(phase) - sine * jnp.sin(phase))
    return j, size * (cosine * jnp.sin(phase) + sine * jnp.cos(phase))


def _split(x: jax.Array, edge: float) -> tuple[jax.Array, jax.Array]:
    """x inside the piece around 0, and inside the one around infinity (elsewhere its edge)."""
    return jnp.minimum(x, edge), jnp.where(x < edge, edge, x)


def _j0(x: jax.Array) -> jax.Array:
    x = jnp.abs(x)
    near, far = _split(x, _J_EDGE)
    inside = _sum(_j0_near, near * near, 0.0, _J_EDGE**2)
    return jnp.where(x < _J_EDGE, inside, _far(far, 0)[0])


def _j1(x: jax.Array) -> jax.Array:
    size = jnp.abs(x)
    near, far = _split(size, _J_EDGE)
    inside = near * _sum(_j1_near, near * near, 0.0, _J_EDGE**2)
    return jnp.where(x < 0, -1, 1) * jnp.where(size < _J_EDGE, inside, _far(far, 1)[0])


def _y0(x: jax.Array) -> jax.Array:
    near, far = _split(x, _J_EDGE)
    smooth = _sum(_y0_near, near * near, 0.0, _J_EDGE**2)
    inside = smooth + 2 / math.pi * jnp.log(near) * _j0(near)
    return jnp.where(x == 0, -jnp.inf, jnp.where(x < _J_EDGE, inside, _far(far, 0)[1]))


def _y1(x: jax.Array) -> jax.Array:
    near, far = _split(x, _J_EDGE)
    smooth = near * _sum(_y1_near, near * near, 0.0, _J_EDGE**2)
    inside = smooth + 2 / math.pi * (jnp.log(near) * _j1(near) - 1 / near)
    found = jnp.where(x < _J_EDGE, inside, _far(far, 1)[1])
    return jnp.where(x == 0, -jnp.inf, jnp.where(x < 0, jnp.nan, found))


# The modified functions of the second kind; around infinity as functions of u = edge / x.


def _k0_near(s: Any, t: Any) -> Any:
    x = np.sqrt(t)
    return s.k0(x) + np.log(x / 2) * s.i0(x)


def _k1_near(s: Any, t: Any) -> Any:
    x = np.sqrt(t)
    return x * (s.k1(x) - np.log(x / 2) * s.i1(x))


def _k0_far(s: Any, u: Any) -> Any:
    return s.k0e(_K_EDGE / u) * np.sqrt(_K_EDGE / u)


def _k1_far(s: Any, u: Any) -> Any:
    return s.k1e(_K_EDGE / u) * np.sqrt(_K_EDGE / u)


def _k(order: int, scaled: bool) -> Callable[[jax.Array], jax.Array]:
    near_part, far_part = ((_k0_near, _k0_far), (_k1_near, _k1_far))[order]

    def function(x: jax.Array) -> jax.Array:
        near, far = _split(x, _K_EDGE)
        smooth = _sum(near_part, near * near, 0.0, _K_EDGE**2)
        logarithm = jnp.log(near / 2)
        if order == 0:
            inside = smooth - logarithm * special.i0(near)
        else:
            inside = smooth / near + logarithm * special.i1(near)
        outside = _sum(far_part, _K_EDGE / far) / jnp.sqrt(far)
        if scaled:
            inside = inside * jnp.exp(near)
        else:
            outside = outside * jnp.exp(-far)
        found = jnp.where(x < _K_EDGE, inside, outside)
        return jnp.where(x == 0, jnp.inf, jnp.where(x < 0, jnp.nan, found))

    return function


# Airy's function: near 0 itself, to the right without its decay, to the left without its phase.


def _airy_near(s: Any, x: Any) -> Any:
    return s.airy(x)[0]


def _airy_right(s: Any, u: Any) -> Any:
    x = _AIRY_ABOVE * u ** (-2 / 3)
    return s.airye(x)[0] * x**0.25


def _airy_left(sine: bool) -> Part:
    def part(s: Any, u: Any) -> Any:
        z = -_AIRY_BELOW * u ** (-2 / 3)
        turned = 2 / 3 * z**1.5 + np.pi / 4
        a, _, b, _ = s.airy(-z)
        size = np.sqrt(np.pi) * z**0.25
        if sine:
            return size * (a * np.sin(turned) + b * np.cos(turned))
        return size * (b * np.sin(turned) - a * np.cos(turned))

    return part


_LEFT_SINE, _LEFT_COSINE = _airy_left(True), _airy_left(False)


def _airy(x: jax.Array) -> jax.Array:
    near = jnp.clip(x, _AIRY_BELOW, _AIRY_ABOVE)
    inside = _sum(_airy_near, near, _AIRY_BELOW, _AIRY_ABOVE)
    right = jnp.where(x > _AIRY_ABOVE, x, _AIRY_ABOVE)
    decay = jnp.exp(-2 / 3 * right * jnp.sqrt(right))
    above = decay * right**-0.25 * _sum(_airy_right, (_AIRY_ABOVE / right) ** 1.5)
    z = jnp.where(x < _AIRY_BELOW, -x, -_AIRY_BELOW)
    turned = 2 / 3 * z * jnp.sqrt(z) + math.pi / 4
    u = (-_AIRY_BELOW / z) ** 1.5
    waves = jnp.sin(turned) * _sum(_LEFT_SINE, u) - jnp.cos(turned) * _sum(_LEFT_COSINE, u)
    below = waves * z**-0.25 / math.sqrt(math.pi)
    return jnp.where(x > _AIRY_ABOVE, above, jnp.where(x < _AIRY_BELOW, below, inside))


def _spherical_j0(x: jax.Array) -> jax.Array:
    safe = jnp.where(x == 0, 1, x)
    return jnp.where(jnp.isinf(x), 0, jnp.where(x == 0, 1, jnp.sin(x) / safe))


_FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "special_airy_ai": _airy,
    "special_bessel_j0": _j0,
    "special_bessel_j1": _j1,
    "special_bessel_y0": _y0,
    "special_bessel_y1": _y1,
    "special_modified_bessel_i0": special.i0,
    "special_modified_bessel_i1": special.i1,
    "special_modified_bessel_k0": _k(0, scaled=False),
    "special_modified_bessel_k1": _k(1, scaled=False),
    "special_scaled_modified_bessel_k0": _k(0, scaled=True),
    "special_scaled_modified_bessel_k1": _k(1, scaled=True),
    "special_spherical_bessel_j0": _spherical_j0,
}


def _lowering(function: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    def lower(call: Call, x: jax.Array) -> jax.Array:
        return function(wide_float(x))

    return lower


for _name, _function in _FUNCTIONS.items():
    lowers(_name)(_lowering(_function))
