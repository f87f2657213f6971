"""Fourier transforms over any dims."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tpu_perf.runtime.lowerings.registry import Call, lowers

#: torch's normalization argument, as powers of the number of points.
_NONE, _BY_ROOT, _BY_COUNT = 0, 1, 2


def _scaled(x: jax.Array, count: int, normalization: int) -> jax.Array:
    if normalization == _NONE:
        return x
    divisor = math.sqrt(count) if normalization == _BY_ROOT else count
    return x / jnp.asarray(divisor, x.real.dtype)


def _points(x: jax.Array, dim: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dim)


@lowers("_fft_c2c")
def complex_to_complex(
    call: Call, self: jax.Array, dim: Sequence[int], normalization: int, forward: bool
) -> jax.Array:
    transform: Callable[..., Any] = jnp.fft.fft if forward else jnp.fft.ifft
    out = self
    for d in dim:
        # JAX's inverse divides by the length; torch asks for that separately.
        out = transform(out, axis=d, norm="backward" if forward else "forward")
    return _scaled(out, _points(self, dim), normalization)


@lowers("_fft_r2c")
def real_to_complex(
    call: Call, self: jax.Array, dim: Sequence[int], normalization: int, onesided: bool
) -> jax.Array:
    out = jnp.fft.rfft(self, axis=dim[-1]) if onesided else jnp.fft.fft(self, axis=dim[-1])
    for d in dim[:-1]:
        out = jnp.fft.fft(out, axis=d)
    return _scaled(out, _points(self, dim), normalization)


@lowers("_fft_c2r")
def complex_to_real(
    call: Call, self: jax.Array, dim: Sequence[int], normalization: int, last_dim_size: int
) -> jax.Array:
    out = self
    for d in dim[:-1]:
        out = jnp.fft.ifft(out, axis=d, norm="forward")
    real = jnp.fft.irfft(out, last_dim_size, axis=dim[-1], norm="forward")
    return _scaled(real, _points(real, dim), normalization)
