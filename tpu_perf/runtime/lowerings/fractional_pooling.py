"""Maxima over windows at random places (fractional max pooling), with their gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from tpu_perf.runtime.lowerings.pooling import scatter_places
from tpu_perf.runtime.lowerings.registry import Call, lowers


def _starts(samples: jax.Array, size: int, out: int, kernel: int) -> jax.Array:
    """Where torch starts the windows of a dim: (..., out) from samples (...)."""
    last = jnp.full((*samples.shape, 1), size - kernel, jnp.int32)
    if out == 1:
        return last
    alpha = jnp.asarray(size - kernel, samples.dtype) / jnp.asarray(out - 1, samples.dtype)
    places = jnp.arange(out - 1, dtype=samples.dtype)
    first = ((places + samples[..., None]) * alpha).astype(jnp.int32)
    first = first - (samples[..., None] * alpha).astype(jnp.int32)
    return jnp.concatenate([first, last], axis=-1)


def _lower(count: int) -> None:
    @lowers(f"fractional_max_pool{count}d")
    def forward(
        call: Call,
        self: jax.Array,
        kernel_size: Sequence[int],
        output_size: Sequence[int],
        random_samples: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        sizes = self.shape[-count:]
        lead = self.shape[: self.ndim - count]
        kernel = list(kernel_size) * (count if len(kernel_size) == 1 else 1)
        out = list(output_size) * (count if len(output_size) == 1 else 1)
        samples = random_samples.reshape(*lead, count)
        starts = []
        for axis in range(count):
            # The samples of two dims are width, height; those of three are in order.
            own = samples[..., count - 1 - axis if count == 2 else axis]
            first = _starts(own, sizes[axis], out[axis], kernel[axis])
            shape = [1] * count
            shape[axis] = out[axis]
            starts.append(first.reshape(*lead, *shape))
        pixels = self.reshape(*lead, math.prod(sizes))
        best = jnp.full((*lead, *out), -jnp.inf, self.dtype)
        index = jnp.full(best.shape, -1, jnp.int32)
        for offset in itertools.product(*(range(k) for k in kernel)):
            flat = jnp.zeros((), jnp.int32)
            for first, step, size in zip(starts, offset, sizes, strict=True):
                flat = flat * size + (first + step)
            flat = jnp.broadcast_to(flat, best.shape)
            seen = jnp.take_along_axis(
                pixels, flat.reshape(*lead, math.prod(out)), axis=-1, mode="promise_in_bounds"
            ).reshape(best.shape)
            better = (seen > best) | jnp.isnan(seen) | (index < 0)
            best, index = jnp.where(better, seen, best), jnp.where(better, flat, index)
        return best, index

    @lowers(f"fractional_max_pool{count}d_backward")
    def backward(
        call: Call,
        grad_output: jax.Array,
        self: jax.Array,
        kernel_size: Sequence[int],
        output_size: Sequence[int],
        indices: jax.Array,
    ) -> jax.Array:
        return scatter_places(grad_output, self, indices, count)


for _count in (2, 3):
    _lower(_count)
