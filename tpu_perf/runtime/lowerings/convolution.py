"""Convolutions of any number of dims, plain and transposed, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings.precision import cast, compute_dtype, is_float
from tpu_perf.runtime.lowerings.registry import Call, lowers

Maybe = jax.Array | None


def _spread(values: Sequence[int], count: int) -> list[int]:
    """One value a spatial dim."""
    return list(values) * count if len(values) == 1 else list(values)


def _labels(ndim: int) -> tuple[str, str, str]:
    spatial = "DHW"[-(ndim - 2) :]
    return f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"


def _convolve(
    x: jax.Array,
    weight: jax.Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    accumulate: Any = None,
) -> jax.Array:
    count = x.ndim - 2
    stride, padding, dilation, extra = (
        _spread(v, count) for v in (stride, padding, dilation, output_padding or [0])
    )
    pads = [(p, p) for p in padding]
    grow = [1] * count
    if transposed:
        # The gradient of a convolution: stretch the input, flip the kernel, swap its channels.
        kernel = weight.shape[2:]
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [(r - p, r - p + e) for r, p, e in zip(reach, padding, extra, strict=True)]
        grow, stride = stride, [1] * count
        wide = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        wide = jnp.flip(jnp.swapaxes(wide, 1, 2), tuple(range(3, 3 + count)))
        weight = wide.reshape(-1, *wide.shape[2:])
    precision = lax.Precision.HIGHEST if x.dtype != jnp.bfloat16 else lax.Precision.DEFAULT
    return lax.conv_general_dilated(
        x,
        weight,
        stride,
        pads,
        lhs_dilation=grow,
        rhs_dilation=dilation,
        dimension_numbers=_labels(x.ndim),
        feature_group_count=groups,
        precision=precision,
        preferred_element_type=accumulate,
    )


@lowers("convolution", "convolution_overrideable")
def convolution(
    call: Call,
    input: jax.Array,
    weight: jax.Array,
    bias: Maybe,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> jax.Array:
    if input.ndim == weight.ndim - 1:
        out = convolution(
            call, input[None], weight, bias, stride, padding, dilation, transposed,
            output_padding, groups,
        )  # fmt: skip
        return jnp.asarray(out[0])
    accumulate = compute_dtype(input.dtype) if is_float(input.dtype) else None
    out = _convolve(
        input, weight, stride, padding, dilation, transposed, output_padding, groups, accumulate
    )
    if bias is not None:
        out = out + cast(bias, out.dtype).reshape(-1, *[1] * (out.ndim - 2))
    return jnp.asarray(out)


@lowers("_convolution")
def underscore_convolution(
    call: Call,
    input: jax.Array,
    weight: jax.Array,
    bias: Maybe,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *flags: bool,
) -> jax.Array:
    return jnp.asarray(
        convolution(
            call, input, weight, bias, stride, padding, dilation, transposed, output_padding,
            groups,
        )
    )  # fmt: skip


def _gradients(
    grad: jax.Array,
    x: jax.Array,
    weight: jax.Array,
    output_mask: Sequence[bool],
    geometry: tuple[Any, ...],
) -> tuple[Maybe, Maybe, Maybe]:
    _, pull = jax.vjp(lambda a, w: _convolve(a, w, *geometry), x, weight)
    grad_input, grad_weight = pull(grad.astype(x.dtype))
    axes = (0, *range(2, grad.ndim))
    grad_bias = jnp.sum(grad, axis=axes, dtype=compute_dtype(grad.dtype))
    return (
        grad_input if output_mask[0] else None,
        grad_weight if output_mask[1] else None,
        grad_bias if output_mask[2] else None,
    )


@lowers("convolution_backward")
def convolution_backward(
    call: Call,
    grad_output: jax.Array,
    input: jax.Array,
    weight: jax.Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    return _gradients(grad_output, input, weight, output_mask, geometry)


@lowers("convolution_backward_overrideable")
def convolution_backward_overrideable(
    call: Call,
    grad_output: jax.Array,
    input: jax.Array,
    weight: jax.Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    return _gradients(grad_output, input, weight, output_mask, geometry)
