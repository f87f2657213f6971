"""Orthogonal polynomials whose degree is itself a tensor: one three-term recurrence each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings.precision import limits, promote_float
from tpu_perf.runtime.lowerings.registry import Call, Operand, lowers

#: Polynomials of degree 0 (always 1) and 1, and that of degree k + 1 from x, k and the two before.
First = Callable[[jax.Array], jax.Array]
Next = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def _recurrence(x: jax.Array, degree: jax.Array, first: First, following: Next) -> jax.Array:
    """The polynomials of these degrees at x: all recur up to the highest, each keeps its own."""
    start = first(x)
    found = jnp.where(degree == 0, jnp.ones_like(x), start)

    def step(k: Any, state: Any) -> Any:
        before, last, kept = state
        new = following(x, jnp.asarray(k, x.dtype), last, before)
        return last, new, jnp.where(degree == k + 1, new, kept)

    highest = jnp.max(degree, initial=0)
    found = lax.fori_loop(1, highest, step, (jnp.ones_like(x), start, found))[2]
    return jnp.where(degree < 0, jnp.zeros_like(x), found)


def _operands(x: Operand, n: Operand) -> tuple[jax.Array, jax.Array]:
    wide, degree = jnp.broadcast_arrays(*promote_float(x, n))
    return wide, degree.astype(jnp.int64)


def _chebyshev_next(x: jax.Array, k: jax.Array, last: jax.Array, before: jax.Array) -> jax.Array:
    return 2 * x * last - before


#: The value of degree 1, and the one of degree n at angle a = acos(x) as numerator and denominator.
_CHEBYSHEV: dict[str, tuple[First, Callable[..., tuple[jax.Array, jax.Array]]]] = {
    "t": (lambda x: x, lambda n, a: (jnp.cos(n * a), jnp.ones_like(a))),
    "u": (lambda x: 2 * x, lambda n, a: (jnp.sin((n + 1) * a), jnp.sin(a))),
    "v": (lambda x: 2 * x - 1, lambda n, a: (jnp.cos((n + 0.5) * a), jnp.cos(a / 2))),
    "w": (lambda x: 2 * x + 1, lambda n, a: (jnp.sin((n + 0.5) * a), jnp.sin(a / 2))),
}
#: Above this degree the recurrence loses more than the trigonometric form.
_ANGLES_ABOVE = 6


def _chebyshev(kind: str, shifted: bool) -> Callable[..., jax.Array]:
    first, at_angle = _CHEBYSHEV[kind]

    def lower(call: Call, x: Operand, n: Operand) -> jax.Array:
        at, degree = _operands(x, n)
        at = 2 * at - 1 if shifted else at
        inside = (jnp.abs(at) < 1) & (degree > _ANGLES_ABOVE)
        low = jnp.where(inside, 0, degree)  # these need no steps of the recurrence
        found = _recurrence(at, low, first, _chebyshev_next)
        top, bottom = at_angle(degree.astype(at.dtype), jnp.arccos(jnp.where(inside, at, 0)))
        return jnp.where(inside, top / bottom, found)

    return lower


for _kind in _CHEBYSHEV:
    for _prefix in ("", "shifted_"):
        _name = f"special_{_prefix}chebyshev_polynomial_{_kind}"
        lowers(_name, f"{_name}.x_scalar", f"{_name}.n_scalar")(
            _chebyshev(_kind, shifted=bool(_prefix))
        )


def _with_forms(name: str) -> tuple[str, str, str]:
    name = f"special_{name}"
    return name, f"{name}.x_scalar", f"{name}.n_scalar"


def _hermite(x: Operand, n: Operand, first: First, following: Next) -> jax.Array:
    at, degree = _operands(x, n)
    highest = 128 if limits(at.dtype).bits == 32 else 512  # as torch, which gives NaN above
    found = _recurrence(at, jnp.minimum(degree, highest), first, following)
    return jnp.where(degree > highest, jnp.nan, found)


@lowers(*_with_forms("hermite_polynomial_h"))
def hermite_h(call: Call, x: Operand, n: Operand) -> jax.Array:
    return _hermite(x, n, lambda x: 2 * x, lambda x, k, p, q: 2 * (x * p - k * q))


@lowers(*_with_forms("hermite_polynomial_he"))
def hermite_he(call: Call, x: Operand, n: Operand) -> jax.Array:
    return _hermite(x, n, lambda x: x, lambda x, k, p, q: x * p - k * q)


@lowers(*_with_forms("laguerre_polynomial_l"))
def laguerre(call: Call, x: Operand, n: Operand) -> jax.Array:
    return _recurrence(
        *_operands(x, n), lambda x: 1 - x,
        lambda x, k, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1),
    )  # fmt: skip


@lowers(*_with_forms("legendre_polynomial_p"))
def legendre(call: Call, x: Operand, n: Operand) -> jax.Array:
    return _recurrence(
        *_operands(x, n), lambda x: x,
        lambda x, k, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1),
    )  # fmt: skip
