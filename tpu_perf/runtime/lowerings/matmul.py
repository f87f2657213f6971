"""Matrix products: float32 at full precision, narrow floats accumulated in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings.precision import (
    cast,
    compute_dtype,
    is_float,
    is_inexact,
    wide,
)
from tpu_perf.runtime.lowerings.registry import Call, Operand, lowers


def product(x: jax.Array, y: jax.Array, contract: tuple[Any, Any], batch: tuple[Any, Any]) -> Any:
    """A dot_general whose result is in the dtype torch accumulates in."""
    dimensions = (contract, batch)
    if not is_float(x.dtype):
        if x.dtype == jnp.bool_:
            x, y = x.astype(jnp.int32), y.astype(jnp.int32)
        return lax.dot_general(
            x, y, dimensions, precision=lax.Precision.HIGHEST if is_inexact(x.dtype) else None
        )
    wanted = compute_dtype(x.dtype)
    # HIGHEST on narrow floats would only cost time: their products are exact in float32.
    precision = lax.Precision.HIGHEST if x.dtype == wanted else lax.Precision.DEFAULT
    return lax.dot_general(x, y, dimensions, precision=precision, preferred_element_type=wanted)


def matmul2(x: jax.Array, y: jax.Array) -> jax.Array:
    """(m, k) x (k, n)."""
    return product(x, y, ((1,), (0,)), ((), ()))  # type: ignore[no-any-return]


def matmul3(x: jax.Array, y: jax.Array) -> jax.Array:
    """(b, m, k) x (b, k, n)."""
    return product(x, y, ((2,), (1,)), ((0,), (0,)))  # type: ignore[no-any-return]


@lowers("mm")
def mm(call: Call, self: jax.Array, mat2: jax.Array) -> jax.Array:
    return matmul2(self, mat2)


@lowers("bmm")
def bmm(call: Call, self: jax.Array, mat2: jax.Array) -> jax.Array:
    return matmul3(self, mat2)


@lowers("mm.dtype")
def mm_dtype(call: Call, self: jax.Array, mat2: jax.Array, out_dtype: Any) -> jax.Array:
    return matmul2(self, mat2)


@lowers("bmm.dtype")
def bmm_dtype(call: Call, self: jax.Array, mat2: jax.Array, out_dtype: Any) -> jax.Array:
    return matmul3(self, mat2)


@lowers("dot")
def dot(call: Call, self: jax.Array, tensor: jax.Array) -> jax.Array:
    return product(self, tensor, ((0,), (0,)), ((), ()))  # type: ignore[no-any-return]


@lowers("vdot")
def vdot(call: Call, self: jax.Array, other: jax.Array) -> jax.Array:
    return dot(call, jnp.conj(self), other)


@lowers("mv")
def mv(call: Call, self: jax.Array, vec: jax.Array) -> jax.Array:
    return product(self, vec, ((1,), (0,)), ((), ()))  # type: ignore[no-any-return]


def _combine(self: jax.Array, made: jax.Array, beta: Operand, alpha: Operand) -> jax.Array:
    """beta * self + alpha * made; torch ignores self where beta is a plain 0."""
    if not _is(alpha, 1):
        made = made * cast(alpha, made.dtype)
    if _is(beta, 0):
        return made
    bias = cast(self, made.dtype)
    if not _is(beta, 1):
        factor = cast(beta, made.dtype)
        bias = jnp.where(factor == 0, jnp.zeros_like(bias), bias * factor)
    return bias + made


def _is(number: Operand, value: int) -> bool:
    return isinstance(number, (bool, int, float)) and number == value


@lowers("addmm")
def addmm(
    call: Call,
    self: jax.Array,
    mat1: jax.Array,
    mat2: jax.Array,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> jax.Array:
    return _combine(self, matmul2(mat1, mat2), beta, alpha)


@lowers("baddbmm")
def baddbmm(
    call: Call,
    self: jax.Array,
    batch1: jax.Array,
    batch2: jax.Array,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> jax.Array:
    return _combine(self, matmul3(batch1, batch2), beta, alpha)


@lowers("addbmm")
def addbmm(
    call: Call,
    self: jax.Array,
    batch1: jax.Array,
    batch2: jax.Array,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> jax.Array:
    made = product(batch1, batch2, ((0, 2), (0, 1)), ((), ()))
    return _combine(self, made, beta, alpha)


@lowers("addmv")
def addmv(
    call: Call,
    self: jax.Array,
    mat: jax.Array,
    vec: jax.Array,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> jax.Array:
    return _combine(self, mv(call, mat, vec), beta, alpha)


@lowers("addr")
def addr(
    call: Call,
    self: jax.Array,
    vec1: jax.Array,
    vec2: jax.Array,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> jax.Array:
    return _combine(self, wide(vec1)[:, None] * wide(vec2)[None, :], beta, alpha)


@lowers("linear")
def linear(
    call: Call, input: jax.Array, weight: jax.Array, bias: jax.Array | None = None
) -> jax.Array:
    # Not flattened to rows: on a mesh each dimension may be split along an axis of its own.
    made: jax.Array = product(input, weight, ((input.ndim - 1,), (weight.ndim - 1,)), ((), ()))
    return made if bias is None else made + cast(bias, made.dtype)


@lowers("linear_backward")
def linear_backward(
    call: Call,
    self: jax.Array,
    grad_output: jax.Array,
    weight: jax.Array,
    output_mask: Sequence[bool],
) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
    """As torch's kernels do, gives weight and bias together; the unwanted one is zeros."""
    grad = grad_output
    rows = tuple(range(grad.ndim - 1))
    to_input = to_weight = to_bias = None
    if output_mask[0]:
        to_input = product(grad, weight, ((grad.ndim - 1,), (0,)), ((), ()))
    if output_mask[1] or output_mask[2]:
        to_weight, to_bias = jnp.zeros(weight.shape, grad.dtype), jnp.zeros(weight.shape[0])
    if output_mask[1]:
        to_weight = product(grad, self, (rows, rows), ((), ()))
    if output_mask[2]:
        to_bias = jnp.sum(wide(grad), axis=rows)
    return to_input, to_weight, to_bias


@lowers("_trilinear")
def trilinear(
    call: Call,
    i1: jax.Array,
    i2: jax.Array,
    i3: jax.Array,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> jax.Array:
    """The product of three tensors with dims inserted, summed over dims."""
    ndim = i1.ndim + len(expand1)
    inserted = [[d % ndim for d in e] for e in (expand1, expand2, expand3)]
    terms = [[d for d in range(ndim) if d not in e] for e in inserted]
    kept = [d for d in range(ndim) if d not in [s % ndim for s in sumdim]]
    factors = [wide(i) if is_float(i.dtype) else i for i in (i1, i2, i3)]
    pairs = [part for pair in zip(factors, terms, strict=True) for part in pair]
    return jnp.asarray(jnp.einsum(*pairs, kept, precision=lax.Precision.HIGHEST))
