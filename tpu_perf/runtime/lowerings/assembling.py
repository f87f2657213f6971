"""Joining, repeating, padding and writing into parts of tensors, out of place."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings.precision import cast, wrap_dim
from tpu_perf.runtime.lowerings.registry import Call, Operand, lowers, result_dtype
from tpu_perf.runtime.lowerings.shapes import slice_bounds


@lowers("cat")
def cat(call: Call, tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    dtype = result_dtype(*tensors)
    # torch still skips empty 1-D tensors beside ones of more dims.
    parts = [t.astype(dtype) for t in tensors if t.shape != (0,)]
    if not parts:
        return jnp.zeros((0,), dtype)
    return jnp.concatenate(parts, wrap_dim(dim, parts[0].ndim))


@lowers("stack")
def stack(call: Call, tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    dtype = result_dtype(*tensors)
    return jnp.stack([t.astype(dtype) for t in tensors], wrap_dim(dim, tensors[0].ndim + 1))


@lowers("repeat")
def repeat(call: Call, self: jax.Array, repeats: Sequence[int]) -> jax.Array:
    return jnp.tile(self, tuple(repeats))


@lowers("flip")
def flip(call: Call, self: jax.Array, dims: Sequence[int]) -> jax.Array:
    return jnp.flip(self, [wrap_dim(d, self.ndim) for d in dims]) if self.ndim else self


@lowers("roll")
def roll(call: Call, self: jax.Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> jax.Array:
    if not dims:
        return jnp.roll(self.reshape(-1), shifts[0]).reshape(self.shape)
    return jnp.roll(self, tuple(shifts), tuple(dims)) if self.size else self


@lowers("rot90")
def rot90(call: Call, self: jax.Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> jax.Array:
    return jnp.rot90(self, k, (dims[0], dims[1]))


@lowers("constant_pad_nd")
def constant_pad_nd(
    call: Call, self: jax.Array, pad: Sequence[int], value: Operand = 0
) -> jax.Array:
    return lax.pad(self, cast(value, self.dtype), _pad_config(self.ndim, pad))


def _pad_config(ndim: int, pad: Sequence[int]) -> list[tuple[int, int, int]]:
    """torch counts pads from the last dim backwards."""
    config = [(0, 0, 0)] * ndim
    for i in range(len(pad) // 2):
        config[ndim - 1 - i] = (pad[2 * i], pad[2 * i + 1], 0)
    return config


def _triangle(self: jax.Array, diagonal: int, lower: bool) -> jax.Array:
    rows = lax.broadcasted_iota(jnp.int32, self.shape[-2:], 0)
    columns = lax.broadcasted_iota(jnp.int32, self.shape[-2:], 1)
    inside = columns - rows <= diagonal if lower else columns - rows >= diagonal
    return jnp.where(inside, self, jnp.zeros((), self.dtype))


@lowers("tril")
def tril(call: Call, self: jax.Array, diagonal: int = 0) -> jax.Array:
    return _triangle(self, diagonal, lower=True)


@lowers("triu")
def triu(call: Call, self: jax.Array, diagonal: int = 0) -> jax.Array:
    return _triangle(self, diagonal, lower=False)


@lowers("slice_scatter")
def slice_scatter(
    call: Call,
    self: jax.Array,
    src: jax.Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> jax.Array:
    dim = wrap_dim(dim, self.ndim)
    start, end, step = slice_bounds(self.shape[dim], start, end, step)
    src = src.astype(self.dtype)
    if step == 1:
        return lax.dynamic_update_slice_in_dim(self, src, start, dim)
    where = (*[slice(None)] * dim, slice(start, end, step))
    return self.at[where].set(src)


@lowers("slice_backward")
def slice_backward(
    call: Call,
    grad_output: jax.Array,
    input_sizes: Sequence[int],
    dim: int,
    start: int,
    end: int,
    step: int,
) -> jax.Array:
    dim = wrap_dim(dim, len(input_sizes))
    size = input_sizes[dim]
    start, end, step = slice_bounds(size, start, end, step)
    length = grad_output.shape[dim]
    used = start + max(length - 1, 0) * step + (1 if length else 0)
    config = [(0, 0, 0)] * len(input_sizes)
    config[dim] = (start, size - used, step - 1)
    return lax.pad(grad_output, jnp.zeros((), grad_output.dtype), config)


@lowers("select_scatter")
def select_scatter(call: Call, self: jax.Array, src: jax.Array, dim: int, index: int) -> jax.Array:
    dim = wrap_dim(dim, self.ndim)
    index = index % self.shape[dim]
    part = jnp.expand_dims(src.astype(self.dtype), dim)
    return lax.dynamic_update_slice_in_dim(self, part, index, dim)


@lowers("select_backward")
def select_backward(
    call: Call, grad_output: jax.Array, input_sizes: Sequence[int], dim: int, index: int
) -> jax.Array:
    dim = wrap_dim(dim, len(input_sizes))
    index = index % input_sizes[dim]
    config = [(0, 0, 0)] * len(input_sizes)
    config[dim] = (index, input_sizes[dim] - index - 1, 0)
    part = jnp.expand_dims(grad_output, dim)
    return lax.pad(part, jnp.zeros((), part.dtype), config)


def _diagonal_mask(
    shape: Sequence[int], offset: int, dim1: int, dim2: int
) -> tuple[jax.Array, int]:
    """Where the diagonal of the last two dims lies, and its first row."""
    rows = lax.broadcasted_iota(jnp.int32, (shape[dim1], shape[dim2]), 0)
    columns = lax.broadcasted_iota(jnp.int32, (shape[dim1], shape[dim2]), 1)
    return columns - rows == offset, max(-offset, 0)


def _on_diagonal(
    base: jax.Array, values: jax.Array, offset: int, dim1: int, dim2: int
) -> jax.Array:
    dim1, dim2 = wrap_dim(dim1, base.ndim), wrap_dim(dim2, base.ndim)
    mask, first = _diagonal_mask(base.shape, offset, dim1, dim2)
    moved = jnp.moveaxis(base, (dim1, dim2), (-2, -1))
    # The k-th value belongs to row first + k; spread it over that row and keep the diagonal.
    rows = lax.pad(
        values.astype(base.dtype),
        jnp.zeros((), base.dtype),
        [(0, 0, 0)] * (values.ndim - 1) + [(first, moved.shape[-2] - first - values.shape[-1], 0)],
    )
    return jnp.moveaxis(jnp.where(mask, rows[..., :, None], moved), (-2, -1), (dim1, dim2))


@lowers("diagonal_scatter")
def diagonal_scatter(
    call: Call, self: jax.Array, src: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> jax.Array:
    return _on_diagonal(self, src, offset, dim1, dim2)


@lowers("diagonal_backward")
def diagonal_backward(
    call: Call,
    grad_output: jax.Array,
    input_sizes: Sequence[int],
    offset: int,
    dim1: int,
    dim2: int,
) -> jax.Array:
    base = jnp.zeros(tuple(input_sizes), grad_output.dtype)
    return _on_diagonal(base, grad_output, offset, dim1, dim2)


@lowers("diag_embed")
def diag_embed(
    call: Call, self: jax.Array, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> jax.Array:
    return _on_diagonal(jnp.zeros(call.shape, self.dtype), self, offset, dim1, dim2)


@lowers("unfold_backward")
def unfold_backward(
    call: Call, grad_in: jax.Array, input_sizes: Sequence[int], dim: int, size: int, step: int
) -> jax.Array:
    dim = wrap_dim(dim, len(input_sizes))
    moved = jnp.moveaxis(grad_in, dim, -2) if len(input_sizes) else grad_in.reshape(1, -1)
    rest, windows = moved.shape[:-2], moved.shape[-2]
    length = input_sizes[dim] if len(input_sizes) else 1
    out = jnp.zeros((*rest, length), grad_in.dtype)
    zero = jnp.zeros((), grad_in.dtype)
    plain = [(0, 0, 0)] * len(rest)
    for k in range(size):
        # The k-th elements of all windows lie `step` apart.
        part = moved[..., k]
        used = k + (windows - 1) * step + 1
        out = out + lax.pad(part, zero, [*plain, (k, length - used, step - 1)])
    return jnp.moveaxis(out, -1, dim) if len(input_sizes) else out.reshape(())


@lowers("pixel_shuffle")
def pixel_shuffle(call: Call, self: jax.Array, upscale_factor: int) -> jax.Array:
    *lead, channels, height, width = self.shape
    r = upscale_factor
    x = self.reshape(*lead, channels // (r * r), r, r, height, width)
    n = len(lead)
    x = x.transpose(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return x.reshape(call.shape)


@lowers("pixel_unshuffle")
def pixel_unshuffle(call: Call, self: jax.Array, downscale_factor: int) -> jax.Array:
    *lead, channels, height, width = self.shape
    r = downscale_factor
    x = self.reshape(*lead, channels, height // r, r, width // r, r)
    n = len(lead)
    x = x.transpose(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return x.reshape(call.shape)


@lowers("channel_shuffle")
def channel_shuffle(call: Call, self: jax.Array, groups: int) -> jax.Array:
    batch, channels, *rest = self.shape
    x = self.reshape(batch, groups, channels // groups, *rest)
    return jnp.swapaxes(x, 1, 2).reshape(self.shape)
