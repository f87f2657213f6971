"""Convolutions: every output point meets the whole kernel of its group once.

Taps that fall on padding are counted, as is the convention of torch's counter and of published
figures; strides and dilation change how many output points there are, not what each costs.
"""

from __future__ import annotations

import math

from tpu_perf.analysis.op_flops.call import Call, CallFormatError
from tpu_perf.analysis.op_flops.formulas import Attention, formula


def forward_flops(batch: int, points: tuple[int, ...], weight: tuple[int, ...]) -> float:
    """2 x batch x points x elements of the weight.

    weight is (out, in / groups, *kernel), or transposed (in, out / groups, *kernel): either way
    its elements are what one point needs, groups included. `points` are the output's, for a
    transposed convolution the input's, each of which the kernel scatters.
    """
    return 2.0 * batch * math.prod(points) * math.prod(weight)


def _integers(value: object, count: int) -> list[int]:
    if isinstance(value, (int, float)):
        return [int(value)] * count
    if not isinstance(value, list) or not value:
        raise CallFormatError(f"{value!r} is not a list of {count} integers")
    numbers = [int(number) for number in value]
    return numbers * count if len(numbers) == 1 else numbers


def _output_points(call: Call, shape: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Spatial size of the result: floor((n + 2 pad - dilation (k - 1) - 1) / stride) + 1."""
    rank = len(kernel)
    made = call.result_shape()
    if made is not None:
        return made[len(made) - rank :]
    stride = _integers(call.get("stride", 1), rank)
    dilation = _integers(call.get("dilation", 1), rank)
    padding = call.get("padding", 0)
    if padding == "same":
        return shape[-rank:]
    pads = [0] * rank if padding == "valid" else _integers(padding, rank)
    sizes = zip(shape[-rank:], kernel, stride, pads, dilation, strict=True)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)


def _batch(shape: tuple[int, ...], weight: tuple[int, ...]) -> int:
    return shape[0] if len(shape) == len(weight) else 1


@formula(
    *("convolution", "convolution_overrideable", "_convolution", "_convolution_mode"),
    *("conv1d", "conv2d", "conv3d", "cudnn_convolution", "cudnn_convolution_relu"),
    *("mkldnn_convolution", "miopen_convolution", "_slow_conv2d_forward", "slow_conv3d_forward"),
    *("slow_conv3d", "thnn_conv2d", "slow_conv_dilated2d", "slow_conv_dilated3d"),
    *("_conv_depthwise2d", "conv_depthwise3d", "miopen_depthwise_convolution"),
)
def convolution(call: Call, attention: Attention) -> float:
    shape, weight = call.shape("input", "self"), call.shape("weight")
    if call.get("transposed", False):
        return forward_flops(_batch(shape, weight), shape[-len(weight[2:]) :], weight)
    points = _output_points(call, shape, weight[2:])
    return forward_flops(_batch(shape, weight), points, weight)


@formula(
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "slow_conv_transpose2d"),
    *("slow_conv_transpose3d", "cudnn_convolution_transpose", "miopen_convolution_transpose"),
)
def transposed(call: Call, attention: Attention) -> float:
    shape, weight = call.shape("input", "self"), call.shape("weight")
    return forward_flops(_batch(shape, weight), shape[-len(weight[2:]) :], weight)


@formula("convolution_backward", "convolution_backward_overrideable", "_slow_conv2d_backward")
def backward(call: Call, attention: Attention) -> float:
    """The gradients of input and weight each take the forward's products; that of the bias is a
    reduction. Which are asked for stands in output_mask."""
    shape, weight = call.shape("input", "self"), call.shape("weight")
    gradient = call.shape("grad_output")
    rank = len(weight[2:])
    points = shape[-rank:] if call.get("transposed", False) else gradient[-rank:]
    wanted = call.get("output_mask", [True, True, True])
    each = forward_flops(_batch(shape, weight), points, weight)
    return each * sum(bool(flag) for flag in wanted[:2])


@formula("conv_tbc")
def time_batch_channels(call: Call, attention: Attention) -> float:
    """input (time, batch, in), weight (kernel, in, out)."""
    (time, batch, _), weight = call.shape("self"), call.shape("weight")
    steps = time + 2 * int(call.get("pad", 0)) - weight[0] + 1
    return 2.0 * steps * batch * math.prod(weight)


@formula("conv_tbc_backward")
def time_batch_channels_backward(call: Call, attention: Attention) -> float:
    gradient, weight = call.shape("self"), call.shape("weight")
    return 2 * 2.0 * gradient[0] * gradient[1] * math.prod(weight)
