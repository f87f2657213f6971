"""Tensors made from sizes and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpu_perf.runtime.lowerings.precision import cast, is_float
from tpu_perf.runtime.lowerings.registry import Call, Operand, lowers


@lowers("full", "full_like", "new_full")
def full(call: Call, *args: Any, **options: Any) -> jax.Array:
    value = options["fill_value"] if "fill_value" in options else args[-1]
    return jnp.broadcast_to(cast(value, call.dtype), call.shape)


@lowers("zeros", "zeros_like", "new_zeros", "zero", "empty.memory_format", "empty_like",
        "new_empty", "empty_strided", "new_empty_strided", "empty_permuted",
        "_efficientzerotensor")  # fmt: skip
def zeros(call: Call, *args: Any, **options: Any) -> jax.Array:
    return jnp.zeros(call.shape, call.dtype)


@lowers("ones", "ones_like", "new_ones")
def ones(call: Call, *args: Any, **options: Any) -> jax.Array:
    return jnp.ones(call.shape, call.dtype)


@lowers("fill.Scalar", "fill.Tensor")
def fill(call: Call, self: jax.Array, value: Operand) -> jax.Array:
    return jnp.broadcast_to(cast(value, self.dtype), self.shape)


@lowers("scalar_tensor")
def scalar_tensor(call: Call, s: Operand, **options: Any) -> jax.Array:
    return cast(s, call.dtype)


@lowers("eye", "eye.m")
def eye(call: Call, *args: Any, **options: Any) -> jax.Array:
    rows, columns = call.shape
    return jnp.eye(rows, columns, dtype=call.dtype)


@lowers("arange", "arange.start", "arange.start_step", static_numbers=True)
def arange(call: Call, start: Any, end: Any = None, step: Any = 1, **options: Any) -> jax.Array:
    if end is None:
        start = 0
    # The values are start + i * step in int64 or double, rounded once.
    whole = not is_float(call.dtype) or (float(start).is_integer() and float(step).is_integer())
    kind = jnp.int64 if whole else jnp.float64
    positions = jnp.arange(math.prod(call.shape), dtype=jnp.int64)
    if start == 0 and step == 1:
        return positions.reshape(call.shape)
    values: jax.Array = kind(start) + positions.astype(kind) * kind(step)
    return values.reshape(call.shape).astype(call.dtype)


@lowers("linspace", static_numbers=True)
def linspace(call: Call, start: Any, end: Any, steps: int, **options: Any) -> jax.Array:
    if steps == 1:
        return jnp.full(call.shape, start, call.dtype)
    values = np.linspace(start, end, steps) if is_float(call.dtype) else _whole(start, end, steps)
    return jnp.asarray(values.astype(call.dtype))


def _whole(start: Any, end: Any, steps: int) -> Any:
    """Integer linspace as torch's kernel: truncated steps from the nearer end."""
    width = (float(end) - float(start)) / max(steps - 1, 1)
    index = np.arange(steps)
    low, high = start + width * index, end - width * (steps - 1 - index)
    return np.trunc(np.where(index < steps // 2, low, high))


@lowers("logspace", static_numbers=True)
def logspace(
    call: Call, start: Any, end: Any, steps: int, base: float = 10.0, **options: Any
) -> jax.Array:
    exponents = np.linspace(start, end, steps) if steps != 1 else np.asarray([float(start)])
    return jnp.asarray(np.power(float(base), exponents).astype(call.dtype))


@lowers("tril_indices")
def tril_indices(call: Call, row: int, col: int, offset: int = 0, **options: Any) -> jax.Array:
    return jnp.asarray(np.stack(np.tril_indices(row, offset, col)))


@lowers("triu_indices")
def triu_indices(call: Call, row: int, col: int, offset: int = 0, **options: Any) -> jax.Array:
    return jnp.asarray(np.stack(np.triu_indices(row, offset, col)))


@lowers("block_diag")
def block_diag(call: Call, tensors: Sequence[jax.Array]) -> jax.Array:
    out = jnp.zeros(call.shape, call.dtype)
    row = column = 0
    for block in tensors:
        block = jnp.atleast_2d(block).astype(call.dtype)
        out = out.at[row : row + block.shape[0], column : column + block.shape[1]].set(block)
        row, column = row + block.shape[0], column + block.shape[1]
    return out
