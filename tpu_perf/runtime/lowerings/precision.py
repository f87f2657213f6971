"""The dtypes lowerings compute in, and how dims and casts follow torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.lowerings.registry import Number, Operand, as_array, result_dtype

Dtype = Any  # np.dtype, or one of JAX's extension types


def is_float(dtype: Dtype) -> bool:
    """Whether a dtype is a real floating one."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


def is_complex(dtype: Dtype) -> bool:
    """Whether a dtype is complex."""
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


def is_inexact(dtype: Dtype) -> bool:
    """Whether a dtype is floating or complex."""
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def default_float() -> Dtype:
    """What integers become in torch's floating-point functions."""
    return numpy_dtype(torch.get_default_dtype())


def compute_dtype(dtype: Dtype) -> Dtype:
    """The dtype torch computes in for values of this dtype: float32 for the narrow floats."""
    if is_float(dtype) and np.dtype(dtype).itemsize < 4:
        return np.dtype(np.float32)
    return np.dtype(dtype)


def limits(dtype: Dtype) -> Any:
    """The numeric limits of a dtype (`min`, `max`, for floats also `eps`, `nmant`)."""
    about: Any = jnp
    return about.finfo(dtype) if is_inexact(dtype) else about.iinfo(dtype)


def wide(x: Any) -> jax.Array:
    """The value in the dtype torch computes in."""
    return cast(x, compute_dtype(as_array(x).dtype))


def wide_float(x: Any) -> jax.Array:
    """As `wide`, with integers and bools as floats."""
    x = as_array(x)
    return wide(x) if is_inexact(x.dtype) else x.astype(default_float())


def promote_wide(*operands: Operand) -> list[jax.Array]:
    """Operands in the dtype torch computes their common dtype in. Numbers keep their full value
    there beside narrow floats, as in torch's kernels."""
    dtype = compute_dtype(result_dtype(*operands))
    return [cast(o, dtype) for o in operands]


def promote_float(*operands: Operand) -> list[jax.Array]:
    """As `promote_wide` for functions that map integers to floats."""
    dtype = result_dtype(*operands)
    dtype = compute_dtype(dtype) if is_inexact(dtype) else default_float()
    return [cast(o, dtype) for o in operands]


def scalar(value: Operand, like: jax.Array) -> jax.Array:
    """A number (or 0-dim tensor) in the dtype of an array."""
    return cast(value, like.dtype)


def cast(value: Any, dtype: Dtype) -> jax.Array:
    """astype as torch casts: complex to real drops the imaginary part, complex to bool is != 0."""
    array = as_array(value)
    if array.dtype == dtype:
        return array
    if is_complex(array.dtype) and not is_complex(dtype):
        array = array != 0 if dtype == jnp.bool_ else array.real
    return array.astype(dtype)


def is_number(value: Any) -> bool:
    """Whether an operand is a Python number, known now or at run time."""
    return isinstance(value, (Number, bool, int, float, complex))


def wrap_dim(dim: int, ndim: int) -> int:
    """A dim counted from the front; 0-dim tensors have one dim for torch."""
    return dim % max(ndim, 1)


def wrap_dims(dims: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Dims counted from the front; none given means all."""
    if dims is None:
        return tuple(range(ndim))
    if isinstance(dims, int):
        dims = [dims]
    if ndim == 0 or len(dims) == 0:
        return tuple(range(ndim))
    return tuple(d % ndim for d in dims)


def at_least_1d(x: jax.Array) -> jax.Array:
    """A 0-dim array as one element."""
    return x.reshape(1) if x.ndim == 0 else x
