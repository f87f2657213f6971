"""Resampling along dims as products with small constant matrices: adaptive means, interpolation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tpu_perf.runtime.lowerings.precision import is_float, is_inexact, limits, wide
from tpu_perf.runtime.lowerings.registry import Call, lowers

Matrix = np.ndarray[Any, np.dtype[np.float64]]


def _apply(x: jax.Array, matrices: Sequence[Matrix]) -> jax.Array:
    """Multiply the last dims by one (out, in) matrix each."""
    if not is_inexact(x.dtype):
        return _apply_to_bytes(x, matrices)
    x = wide(x)
    first = x.ndim - len(matrices)
    for axis, matrix in enumerate(matrices, first):
        weights = jnp.asarray(matrix.astype(x.dtype))
        made = lax.dot_general(
            x, weights, (((axis,), (1,)), ((), ())), precision=lax.Precision.HIGHEST
        )
        x = jnp.moveaxis(made, -1, axis)
    return x


def _apply_to_bytes(x: jax.Array, matrices: Sequence[Matrix]) -> jax.Array:
    """The same for images of bytes, in the fixed-point numbers of torch's CPU kernel: from the last
    dim to the first, each rounded half up to a byte. Weights have as many bits after the point as
    leave the largest of them in 16 (at most 22)."""
    least, most = limits(x.dtype).min, limits(x.dtype).max
    for axis, matrix in zip(range(x.ndim - 1, -1, -1), reversed(matrices), strict=False):
        bits = max(0, min(22, math.ceil(math.log2((2**15 - 0.5) / matrix.max())) - 1))
        weights = np.trunc(matrix * 2**bits + np.copysign(0.5, matrix)).astype(np.int32)
        made = lax.dot_general(
            x.astype(jnp.int32), jnp.asarray(weights), (((axis,), (1,)), ((), ()))
        )
        made = (made + (1 << bits >> 1)) >> bits
        x = jnp.moveaxis(jnp.clip(made, least, most).astype(x.dtype), -1, axis)
    return x


def _adaptive(size: int, out: int) -> Matrix:
    matrix = np.zeros((out, size))
    for i in range(out):
        start, end = i * size // out, -(-(i + 1) * size // out)
        matrix[i, start:end] = 1 / (end - start)
    return matrix


def _positions(size: int, out: int, scale: float | None, align_corners: bool) -> Matrix:
    """Where each output lies in input coordinates."""
    places = np.arange(out, dtype=np.float64)
    if align_corners:
        return places * ((size - 1) / (out - 1) if out > 1 else 0)
    step = 1 / scale if scale is not None and scale > 0 else size / out
    return (places + 0.5) * step - 0.5


def _linear(size: int, out: int, scale: float | None, align_corners: bool) -> Matrix:
    if out == size:  # torch copies then, whatever scale it was given
        return np.eye(size)
    matrix = np.zeros((out, size))
    places = np.maximum(_positions(size, out, scale, align_corners), 0)
    for i, place in enumerate(places):
        low = min(int(place), size - 1)
        high = min(low + 1, size - 1)
        matrix[i, low] += 1 - (place - low)
        matrix[i, high] += place - low
    return matrix


def _cubic(size: int, out: int, scale: float | None, align_corners: bool) -> Matrix:
    matrix = np.zeros((out, size))
    for i, place in enumerate(_positions(size, out, scale, align_corners)):
        low = math.floor(place)
        for k in range(-1, 3):
            matrix[i, min(max(low + k, 0), size - 1)] += _cubic_weight(abs(place - low - k))
    return matrix


def _cubic_weight(distance: float, a: float = -0.75) -> float:
    d = distance
    if d <= 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return ((d - 5) * d + 8) * d * a - 4 * a if d < 2 else 0.0


def _antialiased(kernel: Callable[[float], float], reach: float) -> Callable[..., Matrix]:
    """Weights of a kernel stretched over all input pixels that an output pixel covers."""

    def weights(size: int, out: int, scale: float | None, align_corners: bool) -> Matrix:
        if out == size:  # as above; torch's own gradient on the CPU misses this
            return np.eye(size)
        if align_corners:
            step = (size - 1) / (out - 1) if out > 1 else 0.0
        else:
            step = 1 / scale if scale is not None and scale > 0 else size / out
        stretch = max(step, 1.0)
        matrix = np.zeros((out, size))
        for i in range(out):
            center = step * (i + 0.5)
            low = max(int(center - reach * stretch + 0.5), 0)
            high = min(int(center + reach * stretch + 0.5), size)
            for j in range(low, high):
                matrix[i, j] = kernel((j - center + 0.5) / stretch)
        total = matrix.sum(axis=1, keepdims=True)
        return matrix / np.where(total == 0, 1, total)

    return weights


def _lanczos(x: float) -> float:
    return float(np.sinc(x) * np.sinc(x / 3)) if abs(x) < 3 else 0.0


def _nearest_places(size: int, out: int, scale: float | None, exact: bool) -> Any:
    if not exact and out in (size, 2 * size):  # torch looks at no scale then
        return np.arange(out) // (out // size)
    step = np.float32(1 / scale if scale is not None and scale > 0 else size / out)
    places = np.floor((np.arange(out, dtype=np.float32) + (0.5 if exact else 0)) * step)
    return np.minimum(places, size - 1).astype(np.int64)


def _nearest(size: int, out: int, scale: float | None, exact: bool) -> Matrix:
    matrix = np.zeros((out, size))
    matrix[np.arange(out), _nearest_places(size, out, scale, exact)] = 1
    return matrix


def _lower_adaptive(count: int) -> None:
    @lowers(f"_adaptive_avg_pool{count}d")
    def forward(call: Call, self: jax.Array, output_size: Sequence[int]) -> jax.Array:
        sizes = zip(self.shape[-count:], call.shape[-count:], strict=True)
        return _apply(self, [_adaptive(n, o) for n, o in sizes])

    @lowers(f"_adaptive_avg_pool{count}d_backward")
    def backward(call: Call, grad_output: jax.Array, self: jax.Array) -> jax.Array:
        sizes = zip(self.shape[-count:], grad_output.shape[-count:], strict=True)
        return _apply(grad_output, [_adaptive(n, o).T for n, o in sizes])


for _count in (2, 3):
    _lower_adaptive(_count)


def _lower_weighted(name: str, count: int, weights: Any) -> None:
    def matrices(
        size: Sequence[int], out: Sequence[int], align: bool, scales: Sequence[float | None]
    ) -> list[Matrix]:
        scales = list(scales) + [None] * (count - len(scales))
        return [weights(n, o, s, align) for n, o, s in zip(size, out, scales, strict=True)]

    @lowers(name, static_numbers=True)
    def forward(
        call: Call,
        self: jax.Array,
        output_size: Sequence[int],
        align_corners: bool,
        *scales: float | None,
    ) -> jax.Array:
        return _apply(
            self, matrices(self.shape[-count:], call.shape[-count:], align_corners, scales)
        )

    @lowers(f"{name}_backward", static_numbers=True)
    def backward(
        call: Call,
        grad_output: jax.Array,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        *scales: float | None,
    ) -> jax.Array:
        made = matrices(input_size[-count:], grad_output.shape[-count:], align_corners, scales)
        return _apply(grad_output, [m.T for m in made])


_lower_weighted("upsample_linear1d", 1, _linear)
_lower_weighted("upsample_bilinear2d", 2, _linear)
_lower_weighted("upsample_trilinear3d", 3, _linear)
_lower_weighted("upsample_bicubic2d", 2, _cubic)
_lower_weighted("_upsample_bilinear2d_aa", 2, _antialiased(lambda x: max(1 - abs(x), 0.0), reach=1))
_lower_weighted(
    "_upsample_bicubic2d_aa", 2, _antialiased(lambda x: _cubic_weight(abs(x), a=-0.5), reach=2)
)
_lower_weighted("_upsample_lanczos2d_aa", 2, _antialiased(_lanczos, reach=3))


def _lower_nearest(name: str, count: int, exact: bool) -> None:
    @lowers(name, static_numbers=True)
    def forward(
        call: Call, self: jax.Array, output_size: Sequence[int], *scales: float | None
    ) -> jax.Array:
        all_scales = list(scales) + [None] * (count - len(scales))
        for i in range(count):
            axis = self.ndim - count + i
            places = _nearest_places(self.shape[axis], call.shape[axis], all_scales[i], exact)
            self = jnp.take(self, jnp.asarray(places), axis=axis, mode="clip")
        return self

    @lowers(f"{name}_backward", static_numbers=True)
    def backward(
        call: Call,
        grad_output: jax.Array,
        output_size: Sequence[int],
        input_size: Sequence[int],
        *scales: float | None,
    ) -> jax.Array:
        all_scales = list(scales) + [None] * (count - len(scales))
        geometry = zip(input_size[-count:], grad_output.shape[-count:], all_scales, strict=True)
        return _apply(grad_output, [_nearest(n, o, s, exact).T for n, o, s in geometry])


for _count in (1, 2, 3):
    _lower_nearest(f"upsample_nearest{_count}d", _count, exact=False)
    _lower_nearest(f"_upsample_nearest_exact{_count}d", _count, exact=True)


@lowers("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(call: Call, self: jax.Array, padding: Sequence[int]) -> jax.Array:
    return _edge_pad(self, padding, "reflect")


@lowers("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(call: Call, self: jax.Array, padding: Sequence[int]) -> jax.Array:
    return _edge_pad(self, padding, "edge")


@lowers("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward")
def reflection_pad_backward(
    call: Call, grad_output: jax.Array, self: jax.Array, padding: Sequence[int]
) -> jax.Array:
    return _edge_pad_backward(grad_output, self, padding, "reflect")


@lowers("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def replication_pad_backward(
    call: Call, grad_output: jax.Array, self: jax.Array, padding: Sequence[int]
) -> jax.Array:
    return _edge_pad_backward(grad_output, self, padding, "edge")


def _edge_pad(x: jax.Array, padding: Sequence[int], mode: str) -> jax.Array:
    """Pads count from the last dim backwards; negative ones cut."""
    for i in range(len(padding) // 2):
        axis = x.ndim - 1 - i
        low, high, size = padding[2 * i], padding[2 * i + 1], x.shape[axis]
        places = np.arange(-low, size + high)
        if mode == "reflect":
            places = np.abs(places)
            places = np.where(places >= size, 2 * (size - 1) - places, places)
        x = jnp.take(x, jnp.asarray(np.clip(places, 0, size - 1)), axis=axis, mode="clip")
    return x


def _edge_pad_backward(
    grad: jax.Array, like: jax.Array, padding: Sequence[int], mode: str
) -> jax.Array:
    grad = wide(grad) if is_float(grad.dtype) else grad
    shape = jnp.zeros(like.shape, grad.dtype)
    pull = jax.linear_transpose(lambda x: _edge_pad(x, padding, mode), shape)
    return jnp.asarray(pull(grad)[0])
