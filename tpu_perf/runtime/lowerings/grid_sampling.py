"""Sampling of images and volumes at the points of a grid, and its gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings.precision import wide
from tpu_perf.runtime.lowerings.registry import Call, lowers

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2
#: The coefficient of torch's cubic convolution.
_CUBIC = -0.75

Sample = Callable[[jax.Array, jax.Array], jax.Array]


def _position(coordinate: jax.Array, size: int, align_corners: bool) -> jax.Array:
    """From [-1, 1] to elements of an axis."""
    if align_corners:
        return (coordinate + 1) / 2 * (size - 1)
    return ((coordinate + 1) * size - 1) / 2


def _clipped(position: jax.Array, size: int) -> jax.Array:
    """Within the axis; no gradient from the border on, as in torch."""
    inside = (position > 0) & (position < size - 1)
    return jnp.where(inside, position, lax.stop_gradient(jnp.clip(position, 0, size - 1)))


def _reflected(position: jax.Array, low: float, high: float) -> jax.Array:
    """Folded back into [low, high] as often as it takes."""
    span = high - low
    if span == 0:
        return jnp.zeros_like(position)
    away = jnp.where(position < low, low - position, position - low)
    flips = lax.stop_gradient(jnp.floor(away / span))
    rest = away - flips * span
    return jnp.where(flips % 2 == 0, rest + low, high - rest)


def _padded(position: jax.Array, size: int, padding: int, align_corners: bool) -> jax.Array:
    if padding == _ZEROS:
        return position
    if padding == _REFLECTION:
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        position = _reflected(position, low, high)
    return _clipped(position, size)


def _pick(image: jax.Array, places: Sequence[jax.Array]) -> jax.Array:
    """Elements of [N, C, *axes] at whole places [N, P] of each axis; zero outside."""
    sizes = image.shape[2:]
    flat = jnp.zeros(places[0].shape, jnp.int32)
    inside = jnp.ones(places[0].shape, bool)
    for place, size in zip(places, sizes, strict=True):
        whole = jnp.nan_to_num(lax.stop_gradient(place), nan=-1.0).astype(jnp.int32)
        inside &= (whole >= 0) & (whole < size)
        flat = flat * size + jnp.clip(whole, 0, size - 1)
    rows = image.reshape(*image.shape[:2], -1)
    picked = jnp.take_along_axis(rows, flat[:, None], axis=2)
    return jnp.where(inside[:, None], picked, 0)


def _linear(image: jax.Array, positions: Sequence[jax.Array]) -> jax.Array:
    lows = [lax.stop_gradient(jnp.floor(p)) for p in positions]
    total: jax.Array | float = 0.0
    for corner in itertools.product((0, 1), repeat=len(positions)):
        weight: jax.Array | float = 1.0
        for position, low, bit in zip(positions, lows, corner, strict=True):
            weight = weight * (position - low if bit else low + 1 - position)
        places = [low + bit for low, bit in zip(lows, corner, strict=True)]
        total = total + _pick(image, places) * jnp.asarray(weight)[:, None]
    return jnp.asarray(total)


def _cubic_weights(t: jax.Array) -> list[jax.Array]:
    """Of the four elements around a position, t past the second."""

    def near(x: jax.Array) -> jax.Array:
        return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1

    def far(x: jax.Array) -> jax.Array:
        return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _cubic(
    image: jax.Array, positions: Sequence[jax.Array], padding: int, align_corners: bool
) -> jax.Array:
    lows = [lax.stop_gradient(jnp.floor(p)) for p in positions]
    weights = [_cubic_weights(p - low) for p, low in zip(positions, lows, strict=True)]
    total: jax.Array | float = 0.0
    for taps in itertools.product(range(4), repeat=len(positions)):
        places = [
            _padded(low + tap - 1, size, padding, align_corners)
            for low, tap, size in zip(lows, taps, image.shape[2:], strict=True)
        ]
        weight: jax.Array | float = 1.0
        for each, tap in zip(weights, taps, strict=True):
            weight = weight * each[tap]
        total = total + _pick(image, places) * jnp.asarray(weight)[:, None]
    return jnp.asarray(total)


def _sampler(mode: int, padding: int, align_corners: bool) -> Sample:
    """(image [N, C, *axes], grid [N, *points, axes]) to [N, C, *points]."""

    def sample(image: jax.Array, grid: jax.Array) -> jax.Array:
        points = grid.shape[1:-1]
        flat = grid.reshape(grid.shape[0], -1, grid.shape[-1])
        # A grid's coordinates are in the order x, y, z; axes in the order z, y, x.
        positions = [
            _position(flat[..., -1 - axis], size, align_corners)
            for axis, size in enumerate(image.shape[2:])
        ]
        if mode == _BICUBIC:
            made = _cubic(image, positions, padding, align_corners)
        else:
            positions = [
                _padded(p, size, padding, align_corners)
                for p, size in zip(positions, image.shape[2:], strict=True)
            ]
            if mode == _NEAREST:
                made = _pick(image, [jnp.round(lax.stop_gradient(p)) for p in positions])
            else:
                made = _linear(image, positions)
        return made.reshape(*image.shape[:2], *points)

    return sample


@lowers("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(
    call: Call,
    input: jax.Array,
    grid: jax.Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> jax.Array:
    return _sampler(interpolation_mode, padding_mode, align_corners)(wide(input), wide(grid))


@lowers("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    call: Call,
    grad_output: jax.Array,
    input: jax.Array,
    grid: jax.Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[jax.Array | None, jax.Array]:
    sample = _sampler(interpolation_mode, padding_mode, align_corners)
    _, pull = jax.vjp(sample, wide(input), wide(grid))
    of_image, of_grid = pull(wide(grad_output))
    return (of_image if output_mask[0] else None), of_grid
