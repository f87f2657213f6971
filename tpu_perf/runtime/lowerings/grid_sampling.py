"""Reading an image at positions given by a tensor (grid_sample), with its gradients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from tpu_perf.runtime.lowerings.precision import wide
from tpu_perf.runtime.lowerings.registry import Call, lowers

BILINEAR, NEAREST, BICUBIC = 0, 1, 2  # torch's GridSamplerInterpolation
ZEROS, BORDER, REFLECTION = 0, 1, 2  # torch's GridSamplerPadding


def _in_pixels(place: jax.Array, size: int, align_corners: bool) -> jax.Array:
    """From -1..1 to pixels."""
    if align_corners:
        return (place + 1) / 2 * (size - 1)
    return ((place + 1) * size - 1) / 2


def _clipped(place: jax.Array, size: int) -> jax.Array:
    """Within the image. At its edges the gradient is 0, as torch has it (jnp.clip: a half)."""
    zero, last = jnp.zeros((), place.dtype), jnp.asarray(size - 1, place.dtype)
    return jnp.where(place > 0, jnp.where(place < last, place, last), zero)


def _reflected(place: jax.Array, low: float, high: float) -> jax.Array:
    if low == high:
        return jnp.zeros_like(place)
    span = high - low
    away = jnp.abs(place - low)
    flips = jnp.floor(away / span)
    extra = away - flips * span
    return jnp.where(flips % 2 == 0, extra + low, span - extra + low)


def _padded(place: jax.Array, size: int, padding: int, align_corners: bool) -> jax.Array:
    if padding == REFLECTION:
        edge = 0.0 if align_corners else -0.5
        place = _reflected(place, edge, size - 1 - edge)
    return place if padding == ZEROS else _clipped(place, size)


def _read(image: jax.Array, places: Sequence[jax.Array]) -> jax.Array:
    """image (N, C, *sizes) at whole pixels (N, *out), 0 outside; gives (N, C, *out)."""
    sizes = image.shape[2:]
    inside = jnp.ones(places[0].shape, jnp.bool_)
    flat = jnp.zeros(places[0].shape, jnp.int32)
    for place, size in zip(places, sizes, strict=True):
        inside = inside & (place >= 0) & (place < size)
        # Clipped as floats, because a far position does not fit an integer.
        index = jnp.nan_to_num(jnp.clip(place, 0, size - 1))
        flat = flat * size + jax.lax.stop_gradient(index).astype(jnp.int32)
    pixels = image.reshape(*image.shape[:2], -1)
    picked = jnp.take_along_axis(
        pixels, flat.reshape(flat.shape[0], 1, -1), axis=-1, mode="promise_in_bounds"
    ).reshape(*image.shape[:2], *flat.shape[1:])
    return jnp.where(inside[:, None], picked, jnp.zeros((), image.dtype))


def _cubic_weights(t: jax.Array, a: float = -0.75) -> list[jax.Array]:
    def near(x: jax.Array) -> jax.Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: jax.Array) -> jax.Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _sample(
    image: jax.Array, grid: jax.Array, interpolation: int, padding: int, align_corners: bool
) -> jax.Array:
    sizes = image.shape[2:]
    if image.size == 0 or grid.size == 0:
        return jnp.zeros((*image.shape[:2], *grid.shape[1:-1]), image.dtype)
    # The grid names the last dim first.
    raw = [_in_pixels(grid[..., len(sizes) - 1 - i], n, align_corners) for i, n in enumerate(sizes)]
    if interpolation == BICUBIC:
        return _bicubic(image, raw, padding, align_corners)
    places = [_padded(p, n, padding, align_corners) for p, n in zip(raw, sizes, strict=True)]
    if interpolation == NEAREST:
        return _read(image, [jnp.round(p) for p in places])
    low = [jax.lax.stop_gradient(jnp.floor(p)) for p in places]
    total = jnp.zeros((), image.dtype)
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        weight = jnp.ones((), image.dtype)
        for up, place, base in zip(corner, places, low, strict=True):
            share = place - base
            weight = weight * (share if up else 1 - share)
        pixels = _read(image, [b + up for up, b in zip(corner, low, strict=True)])
        total = total + pixels * weight[:, None]
    return total


def _bicubic(
    image: jax.Array, places: Sequence[jax.Array], padding: int, align_corners: bool
) -> jax.Array:
    sizes = image.shape[2:]
    low = [jax.lax.stop_gradient(jnp.floor(p)) for p in places]
    weights = [_cubic_weights(p - b) for p, b in zip(places, low, strict=True)]
    total = jnp.zeros((), image.dtype)
    for taps in itertools.product(range(4), repeat=len(sizes)):
        at = [
            _padded(b + (tap - 1), n, padding, align_corners)
            for tap, b, n in zip(taps, low, sizes, strict=True)
        ]
        weight = jnp.ones((), image.dtype)
        for tap, each in zip(taps, weights, strict=True):
            weight = weight * each[tap]
        total = total + _read(image, at) * weight[:, None]
    return total


def _lower(count: int) -> None:
    @lowers(f"grid_sampler_{count}d")
    def forward(
        call: Call,
        input: jax.Array,
        grid: jax.Array,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
    ) -> jax.Array:
        return _sample(wide(input), wide(grid), interpolation_mode, padding_mode, align_corners)

    @lowers(f"grid_sampler_{count}d_backward")
    def backward(
        call: Call,
        grad_output: jax.Array,
        input: jax.Array,
        grid: jax.Array,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
        output_mask: Sequence[bool],
    ) -> tuple[jax.Array | None, jax.Array]:
        def sample(image: jax.Array, places: jax.Array) -> jax.Array:
            return _sample(image, places, interpolation_mode, padding_mode, align_corners)

        _, pull = jax.vjp(sample, wide(input), wide(grid))
        image, places = pull(wide(grad_output))
        return (image if output_mask[0] else None), places


for _count in (2, 3):
    _lower(_count)
