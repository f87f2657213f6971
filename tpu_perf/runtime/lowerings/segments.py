"""Reductions of consecutive segments of a dim (segment_reduce), with their gradients."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from tpu_perf.runtime.lowerings.precision import cast, is_float, wide
from tpu_perf.runtime.lowerings.registry import Call, Operand, lowers

_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}


class _Segments:
    """Data as (outer, length, inner), and the segment of every place along the length."""

    def __init__(
        self, shape: tuple[int, ...], lengths: jax.Array | None, offsets: jax.Array | None,
        axis: int,
    ) -> None:  # fmt: skip
        outer, self.length = math.prod(shape[:axis]), shape[axis]
        self.shape = (outer, self.length, math.prod(shape[axis + 1 :]))
        if lengths is not None:
            self.lengths = lengths.reshape(outer, -1)
            ends = jnp.cumsum(self.lengths, axis=-1)
        else:
            assert offsets is not None
            flat = offsets.reshape(outer, -1)
            self.lengths = flat[:, 1:] - flat[:, :-1]
            ends = flat[:, 1:]
        self.count = self.lengths.shape[-1]
        places = jnp.arange(self.length, dtype=ends.dtype)
        # The number of segments that end at or before a place; `count`: in no segment.
        self.of = jnp.sum(ends[:, :, None] <= places, axis=1, dtype=jnp.int32)

    def spread(self, values: jax.Array) -> jax.Array:
        """(outer, count, inner) values at every place, 0 where it is in no segment."""
        padded = jnp.pad(values, ((0, 0), (0, 1), (0, 0)))
        return jnp.take_along_axis(padded, self.of[:, :, None], axis=1)

    def reduce(self, data: jax.Array, how: str, start: jax.Array) -> jax.Array:
        outer, _, inner = self.shape
        base = jnp.broadcast_to(start, (outer, self.count + 1, inner)).astype(data.dtype)
        row = jnp.arange(outer, dtype=jnp.int32)[:, None]
        where: Any = base.at[row, self.of]
        made: jax.Array = {"sum": where.add, "mean": where.add, "prod": where.multiply,
                "max": where.max, "min": where.min}[how](data)  # fmt: skip
        return made[:, : self.count]


@lowers("segment_reduce")
def segment_reduce(
    call: Call,
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    indices: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Operand | None = None,
) -> jax.Array:
    x = wide(data)
    s = _Segments(x.shape, lengths, offsets, axis % x.ndim)
    start = jnp.asarray(_START[reduce], x.dtype) if initial is None else cast(initial, x.dtype)
    made = s.reduce(x.reshape(s.shape), reduce, start)
    if reduce == "mean":
        sizes = s.lengths[:, :, None]
        empty = jnp.nan if initial is None else made
        made = jnp.where(sizes > 0, made / jnp.maximum(sizes, 1).astype(x.dtype), empty)
    return made.reshape(call.shape)


@lowers("_segment_reduce_backward")
def segment_reduce_backward(
    call: Call,
    grad: jax.Array,
    output: jax.Array,
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    initial: Operand | None = None,
) -> jax.Array:
    x = wide(data)
    s = _Segments(x.shape, lengths, offsets, axis % x.ndim)
    x = x.reshape(s.shape)
    grads = wide(grad).reshape(s.shape[0], s.count, s.shape[2])
    results = wide(output).reshape(grads.shape)
    if reduce == "sum":
        made = s.spread(grads)
    elif reduce == "mean":
        made = s.spread(grads / jnp.maximum(s.lengths, 1).astype(x.dtype)[:, :, None])
    elif reduce == "prod":
        start = jnp.ones((), x.dtype) if initial is None else cast(initial, x.dtype)
        zero = x == 0
        zeros = s.reduce(zero.astype(jnp.int32), "sum", jnp.zeros((), jnp.int32))
        others = s.reduce(jnp.where(zero, 1, x), "prod", start)
        # Beside one zero, only it has a gradient; beside two, nothing has.
        alone = s.spread(jnp.where(zeros == 1, grads * others, 0))
        made = jnp.where(zero, alone, s.spread(grads * results) / jnp.where(zero, 1, x))
    else:
        hit = (x == s.spread(results)) & (s.of < s.count)[:, :, None]
        if is_float(x.dtype):
            hit = hit | jnp.isnan(x)
        ties = s.reduce(hit.astype(jnp.int32), "sum", jnp.zeros((), jnp.int32))
        made = jnp.where(hit, s.spread(grads / jnp.maximum(ties, 1).astype(x.dtype)), 0)
    return made.reshape(data.shape)
