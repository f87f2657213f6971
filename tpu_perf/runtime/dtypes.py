"""torch dtypes and the JAX dtypes that stand for them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

TO_NUMPY: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(jnp.bfloat16),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.bool: np.dtype(np.bool_),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    torch.float8_e4m3fn: np.dtype(jnp.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(jnp.float8_e5m2),
}
TO_TORCH: dict[np.dtype[Any], torch.dtype] = {n: t for t, n in TO_NUMPY.items()}


def supported_dtypes() -> list[torch.dtype]:
    """What tensors on the device can hold."""
    return list(TO_NUMPY)


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The JAX dtype for a torch dtype. Raises TypeError for dtypes XLA has no equivalent of."""
    try:
        return TO_NUMPY[dtype]
    except KeyError:
        raise TypeError(
            f"device tpu has no {dtype}: XLA does not know this type; convert before moving the "
            "tensor to the device"
        ) from None
