"""Comparisons, logic, bits and choices between values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tpu_perf.runtime.lowerings.precision import cast
from tpu_perf.runtime.lowerings.registry import Call, Operand, as_array, lowers, promote

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": jnp.equal,
    "ge": jnp.greater_equal,
    "gt": jnp.greater,
    "le": jnp.less_equal,
    "lt": jnp.less,
    "ne": jnp.not_equal,
}
_BITS: dict[str, Callable[[Any, Any], Any]] = {
    "bitwise_and": jnp.bitwise_and,
    "bitwise_or": jnp.bitwise_or,
    "bitwise_xor": jnp.bitwise_xor,
}
_LOGIC: dict[str, Callable[[Any, Any], Any]] = {
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
}


def _on_promoted(function: Callable[[Any, Any], Any]) -> Callable[..., jax.Array]:
    def lower(call: Call, self: Operand, other: Operand) -> jax.Array:
        return jnp.asarray(function(*promote(self, other)))

    return lower


def _on_truth(function: Callable[[Any, Any], Any]) -> Callable[..., jax.Array]:
    def lower(call: Call, self: Operand, other: Operand) -> jax.Array:
        return jnp.asarray(function(as_array(self) != 0, as_array(other) != 0))

    return lower


for _name, _function in _COMPARE.items():
    lowers(f"{_name}.Tensor", f"{_name}.Scalar")(_on_promoted(_function))
for _name, _function in _BITS.items():
    lowers(f"{_name}.Tensor", f"{_name}.Scalar", f"{_name}.Scalar_Tensor")(_on_promoted(_function))
for _name, _function in _LOGIC.items():
    lowers(_name)(_on_truth(_function))


_SHIFT = ("Tensor", "Tensor_Scalar", "Scalar_Tensor")


@lowers(*(f"bitwise_left_shift.{o}" for o in _SHIFT), "__lshift__.Tensor", "__lshift__.Scalar")
def left_shift(call: Call, self: Operand, other: Operand) -> jax.Array:
    x, y = promote(self, other)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x * jnp.exp2(y)
    width = x.dtype.itemsize * 8
    outside = (y < 0) | (y >= width)
    return jnp.where(outside, 0, jnp.left_shift(x, jnp.where(outside, 0, y)))


@lowers(*(f"bitwise_right_shift.{o}" for o in _SHIFT), "__rshift__.Tensor", "__rshift__.Scalar")
def right_shift(call: Call, self: Operand, other: Operand) -> jax.Array:
    x, y = promote(self, other)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x / jnp.exp2(y)
    width = x.dtype.itemsize * 8
    return jnp.right_shift(x, jnp.where((y < 0) | (y >= width), width - 1, y).astype(x.dtype))


@lowers("where.self", "where.Scalar", "where.ScalarSelf", "where.ScalarOther")
def where(call: Call, condition: jax.Array, self: Operand, other: Operand) -> jax.Array:
    yes, no = promote(self, other)
    return jnp.where(condition != 0, yes, no)


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(call: Call, self: jax.Array, mask: jax.Array, value: Operand) -> jax.Array:
    return jnp.where(mask, cast(value, self.dtype), self)


@lowers("equal")
def equal(call: Call, self: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.all(self == other) if self.shape == other.shape else jnp.zeros((), jnp.bool_)


@lowers("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(
    call: Call,
    elements: Operand,
    test_elements: Operand,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> jax.Array:
    x, wanted = promote(elements, test_elements)
    found = jnp.any(x[..., None] == wanted.reshape(-1), axis=-1)
    return ~found if invert else found
