"""Pooling over windows: maxima with their places, and means, with gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tpu_perf.runtime.lowerings.precision import is_float, limits, wide
from tpu_perf.runtime.lowerings.registry import Call, lowers


class _Windows(NamedTuple):
    """Geometry of pooling over the last dims, one entry a dim."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    size: tuple[int, ...]
    out: tuple[int, ...]

    def offsets(self) -> Iterator[tuple[int, ...]]:
        """Positions inside a window, in memory order."""
        return itertools.product(*(range(k) for k in self.kernel))

    def high(self) -> list[int]:
        """Padding at the end that the last window needs (negative: elements never read)."""
        return [
            (o - 1) * s + d * (k - 1) + 1 - n - p
            for o, s, d, k, n, p in zip(
                self.out, self.stride, self.dilation, self.kernel, self.size, self.padding,
                strict=True,
            )
        ]  # fmt: skip


def _windows(
    size: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> _Windows:
    count = len(size)

    def spread(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(values) * count if len(values) == 1 else tuple(values)

    kernel = spread(kernel)
    stride = spread(stride) if stride else kernel
    return _Windows(kernel, stride, spread(padding), spread(dilation), tuple(size), tuple(out))


def _places(w: _Windows, offset: Sequence[int]) -> np.ndarray[Any, Any]:
    """Flat input position that each window reads at an offset (outside: whatever)."""
    flat = np.zeros(w.out, np.int64)
    for axis, (o, s, p, d, n, k) in enumerate(
        zip(w.out, w.stride, w.padding, w.dilation, w.size, offset, strict=True)
    ):
        shape = [1] * len(w.out)
        shape[axis] = o
        flat = flat * n + (np.arange(o) * s - p + k * d).reshape(shape)
    return flat


def _read(padded: jax.Array, w: _Windows, offset: Sequence[int]) -> jax.Array:
    """What every window sees at an offset, from the padded input."""
    lead = padded.ndim - len(w.out)
    starts = [0] * lead + [k * d for k, d in zip(offset, w.dilation, strict=True)]
    limits = list(padded.shape[:lead]) + [
        start + (o - 1) * s + 1 for start, o, s in zip(starts[lead:], w.out, w.stride, strict=True)
    ]
    return lax.slice(padded, starts, limits, [1] * lead + list(w.stride))


def _max_pool(x: jax.Array, w: _Windows) -> tuple[jax.Array, jax.Array]:
    lowest = -jnp.inf if is_float(x.dtype) else limits(x.dtype).min
    pads = [(0, 0, 0)] * (x.ndim - len(w.out))
    pads += [(p, h, 0) for p, h in zip(w.padding, w.high(), strict=True)]
    padded = lax.pad(x, jnp.asarray(lowest, x.dtype), pads)
    inside = lax.pad(
        jnp.ones(w.size, jnp.bool_), jnp.zeros((), jnp.bool_), pads[x.ndim - len(w.out) :]
    )
    best = jnp.full((*x.shape[: x.ndim - len(w.out)], *w.out), lowest, x.dtype)
    index = jnp.full(best.shape, -1, jnp.int64)
    for offset in w.offsets():
        seen = _read(padded, w, offset)
        better = (seen > best) | (index < 0)
        if is_float(x.dtype):
            better = better | jnp.isnan(seen)
        better = better & _read(inside, w, offset)
        best = jnp.where(better, seen, best)
        index = jnp.where(better, _places(w, offset), index)
    return best, index


def _lower_max_pool(count: int) -> None:
    @lowers(f"max_pool{count}d_with_indices")
    def forward(
        call: Call,
        self: jax.Array,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[jax.Array, jax.Array]:
        size, out = self.shape[-count:], call.shape[-count:]
        return _max_pool(self, _windows(size, out, kernel_size, stride, padding, dilation))

    @lowers(f"max_pool{count}d_with_indices_backward")
    def backward(
        call: Call,
        grad_output: jax.Array,
        self: jax.Array,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: jax.Array,
    ) -> jax.Array:
        w = _windows(
            self.shape[-count:], grad_output.shape[-count:], kernel_size, stride, padding,
            dilation,
        )  # fmt: skip
        return _max_pool_backward(wide(grad_output), indices, w)


def _max_pool_backward(grad: jax.Array, indices: jax.Array, w: _Windows) -> jax.Array:
    """Each offset's share of the gradient, put where its windows read, without a scatter."""
    lead = grad.ndim - len(w.out)
    total = jnp.zeros((*grad.shape[:lead], *w.size), grad.dtype)
    zero = jnp.zeros((), grad.dtype)
    for offset in w.offsets():
        part = jnp.where(indices == _places(w, offset), grad, zero)
        pads = [(0, 0, 0)] * lead
        for o, s, p, d, n, k in zip(
            w.out, w.stride, w.padding, w.dilation, w.size, offset, strict=True
        ):
            first = k * d - p
            pads.append((first, n - first - (o - 1) * s - 1, s - 1))
        total = total + lax.pad(part, zero, pads)
    return total


def _divisor(w: _Windows, include_pad: bool, override: int | None) -> np.ndarray[Any, Any]:
    """How many elements torch counts in each window."""
    if override is not None:
        return np.full(w.out, override, np.float64)
    total = np.ones((), np.float64)
    for k, s, p, n, o in zip(w.kernel, w.stride, w.padding, w.size, w.out, strict=True):
        start = np.arange(o) * s - p
        end = np.minimum(start + k, n + p)
        if not include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, n)
        total = np.multiply.outer(total, (end - start).astype(np.float64))
    return total


def _window_sum(x: jax.Array, w: _Windows) -> jax.Array:
    lead = x.ndim - len(w.out)
    total: jax.Array = lax.reduce_window(
        x,
        np.zeros((), x.dtype),  # a constant: only then is the sum a linear op to JAX
        lax.add,
        (1,) * lead + w.kernel,
        (1,) * lead + w.stride,
        [(0, 0)] * lead + list(zip(w.padding, w.high(), strict=True)),
    )
    return total


def _average(x: jax.Array, w: _Windows, include_pad: bool, override: int | None) -> jax.Array:
    x = wide(x) if is_float(x.dtype) else x.astype(jnp.int64)
    total = _window_sum(x, w)
    divisor = jnp.asarray(_divisor(w, include_pad, override).astype(total.dtype))
    return total / divisor if is_float(total.dtype) else lax.div(
        total, jnp.broadcast_to(divisor, total.shape)
    )  # fmt: skip


def _lower_average_pool(count: int) -> None:
    @lowers(f"avg_pool{count}d")
    def forward(
        call: Call,
        self: jax.Array,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> jax.Array:
        size, out = self.shape[-count:], call.shape[-count:]
        w = _windows(size, out, kernel_size, stride, padding, (1,))
        return _average(self, w, count_include_pad, divisor_override)

    if count == 1:
        return  # torch takes its gradient through avg_pool2d

    @lowers(f"avg_pool{count}d_backward")
    def backward(
        call: Call,
        grad_output: jax.Array,
        self: jax.Array,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> jax.Array:
        grad = wide(grad_output)
        w = _windows(self.shape[-count:], grad.shape[-count:], kernel_size, stride, padding, (1,))
        divisor = _divisor(w, count_include_pad, divisor_override).astype(grad.dtype)
        like = jnp.zeros(self.shape, grad.dtype)
        pull = jax.linear_transpose(lambda x: _window_sum(x, w), like)
        return jnp.asarray(pull(grad / divisor)[0])


for _count in (1, 2, 3):
    _lower_average_pool(_count)
for _count in (2, 3):
    _lower_max_pool(_count)


def _ranges(size: int, out: int) -> list[tuple[int, int]]:
    """torch's adaptive windows."""
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _adaptive_max(x: jax.Array, out: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    lead, size = x.shape[: x.ndim - len(out)], x.shape[x.ndim - len(out) :]
    grid = [_ranges(n, o) for n, o in zip(size, out, strict=True)]
    flat_place = np.arange(math.prod(size)).reshape(size)
    values, places = [], []
    for cell in itertools.product(*grid):
        where = tuple(slice(a, b) for a, b in cell)
        part = x[(..., *where)].reshape(*lead, -1)
        best = jnp.argmax(part, axis=-1)
        values.append(jnp.max(part, axis=-1))
        places.append(jnp.asarray(flat_place[where].reshape(-1))[best])
    shape = (*lead, *out)
    return jnp.stack(values, -1).reshape(shape), jnp.stack(places, -1).reshape(shape)


def scatter_places(grad: jax.Array, like: jax.Array, places: jax.Array, dims: int) -> jax.Array:
    """Gradients added at flat places of the last dims."""
    lead = like.shape[: like.ndim - dims]
    rows, flat = math.prod(lead), math.prod(like.shape[like.ndim - dims :])
    count = math.prod(places.shape[places.ndim - dims :])
    zeros = jnp.zeros((rows, flat), wide(grad).dtype)
    row = jnp.arange(rows)[:, None]
    total = zeros.at[row, places.reshape(rows, count)].add(wide(grad).reshape(rows, count))
    return total.reshape(like.shape)


def _lower_adaptive_max(count: int) -> None:
    @lowers(f"adaptive_max_pool{count}d")
    def forward(
        call: Call, self: jax.Array, output_size: Sequence[int]
    ) -> tuple[jax.Array, jax.Array]:
        return _adaptive_max(self, call.shape[-count:])

    @lowers(f"adaptive_max_pool{count}d_backward")
    def backward(
        call: Call, grad_output: jax.Array, self: jax.Array, indices: jax.Array
    ) -> jax.Array:
        return scatter_places(grad_output, self, indices, count)


for _count in (2, 3):
    _lower_adaptive_max(_count)
