"""FLOPs and transcendental operations of instructions, by the conventions of XLA's cost analysis.

A multiply-add is two FLOPs; an elementwise op is one an element, whatever its type; functions
like exp are counted apart. Source of the formulas: `xla/service/hlo_cost_analysis.cc`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tpu_perf.hlo.category import ELEMENTWISE
from tpu_perf.hlo.module import Computation, Instruction
from tpu_perf.hlo.shape import Shape

FMA = 2
#: Kernel or output positions that are walked one by one, for a convolution; above it is unknown.
MOST_POSITIONS = 1_000_000
#: Custom calls of XLA:CPU that multiply two matrices. (Eigen's and YNN's multiplications keep
#: the opcode dot, bare or in a fusion.)
MATMUL_CALLS = frozenset({"__onednn$matmul"})


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of one execution; None where not known."""

    flops: float | None = 0.0
    transcendentals: float | None = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            _sum(self.flops, other.flops), _sum(self.transcendentals, other.transcendentals)
        )

    def times(self, count: float) -> Work:
        return Work(
            None if self.flops is None else self.flops * count,
            None if self.transcendentals is None else self.transcendentals * count,
        )


UNKNOWN = Work(None, None)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def work_of(instruction: Instruction) -> Work:
    """What one execution computes itself, fused instructions included.

    Instructions that run other computations (while, call, conditional) compute nothing
    themselves. Raises IndexError, ValueError or ZeroDivisionError where dimension numbers do not
    fit the shapes.
    """
    opcode, elements = instruction.opcode, instruction.shape.elements
    if opcode in ELEMENTWISE:
        return Work(0.0, elements) if ELEMENTWISE[opcode] else Work(elements, 0.0)
    if opcode == "fusion":
        return work_inside(instruction.called)
    special = _SPECIAL.get(opcode)
    return Work() if special is None else special(instruction)


def work_inside(computations: Iterable[Computation]) -> Work:
    """One execution of each of these computations, every instruction once."""
    total = Work()
    for computation in computations:
        for inner in computation.instructions:
            total += work_of(inner)
    return total


def _first_array(shape: Shape) -> Shape:
    return shape.parts[0] if shape.is_tuple else shape


def _dot(dot: Instruction) -> Work:
    lhs = dot.operands[0].shape.dimensions
    contracted = dot.proto.dot_dimension_numbers.lhs_contracting_dimensions
    return Work(FMA * dot.shape.elements * math.prod(lhs[at] for at in contracted))


def _unknown(_: Instruction) -> Work:
    return UNKNOWN


def _convolution(convolution: Instruction) -> Work:
    lhs, rhs = (one.shape.dimensions for one in convolution.operands[:2])
    out = convolution.shape.dimensions
    proto = convolution.proto
    numbers = proto.convolution_dimension_numbers
    multiplies = (
        lhs[numbers.input_feature_dimension]
        // max(1, proto.feature_group_count)
        * out[numbers.output_feature_dimension]
        * (lhs[numbers.input_batch_dimension] // max(1, proto.batch_group_count))
    )
    for number, window in enumerate(proto.window.dimensions):
        positions = valid_positions(
            window,
            inputs=lhs[numbers.input_spatial_dimensions[number]],
            kernel=rhs[numbers.kernel_spatial_dimensions[number]],
            outputs=out[numbers.output_spatial_dimensions[number]],
        )
        if positions is None:
            return UNKNOWN
        multiplies *= positions
    return Work(FMA * multiplies)


def valid_positions(window: Any, *, inputs: int, kernel: int, outputs: int) -> int | None:
    """Pairs of kernel and output positions along one dimension that meet a real input element.

    Positions in padding and in the holes of a dilated base multiply zeros: they are not counted.
    None if both sides are too long to walk.
    """
    walked, counted = (kernel, outputs) if kernel <= outputs else (outputs, kernel)
    if walked > MOST_POSITIONS:
        return None
    kernel_step, output_step = window.window_dilation or 1, window.stride or 1
    steps = (kernel_step, output_step) if kernel <= outputs else (output_step, kernel_step)
    base = window.base_dilation or 1
    last = (inputs - 1) * base
    return sum(
        _hits(at * steps[0] - window.padding_low, steps[1], counted, base, last)
        for at in range(walked)
    )


def _hits(start: int, step: int, count: int, base: int, last: int) -> int:
    """How many of start, start + step, ... (count of them) are multiples of base in [0, last]."""
    if step <= 0 or base <= 0:
        raise ValueError("a stride or dilation that is not positive")
    first = max(0, -(start // step))  # the first term that is not negative
    end = min(count, (last - start) // step + 1) if last >= start else 0
    period = base // math.gcd(step, base)
    for begin in range(first, min(end, first + period)):
        if (start + begin * step) % base == 0:
            return (end - 1 - begin) // period + 1
    return 0


def _reduce(reduce: Instruction) -> Work:
    """The function runs once for each element that disappears."""
    gone = reduce.operands[0].shape.elements - _first_array(reduce.shape).elements
    return work_inside(reduce.called).times(max(0, gone))


def _reduce_window(windowed: Instruction) -> Work:
    """Window size - 1 applications an output element.

    XLA writes a reduction whose result is broadcast back over the dimension as a window that
    covers it everywhere; that is counted as the reduction it is.
    """
    outputs = _first_array(windowed.shape)
    dimensions = list(windowed.proto.window.dimensions)
    size = math.prod(one.size for one in dimensions)
    count = (size - 1) * outputs.elements
    wide = [at for at, one in enumerate(dimensions) if one.size != 1]
    padded = [one for one in dimensions if one.padding_low or one.padding_high]
    if len(wide) == 1 and len(padded) == 1 and not windowed.shape.is_tuple:
        one, span = dimensions[wide[0]], outputs.dimensions[wide[0]]
        whole = one.padding_low == one.padding_high == span - 1 and one.size == 2 * span - 1
        if whole and span > 1:
            count = outputs.elements // span + span - 1
    return work_inside(windowed.called).times(max(0, count))


def _select_and_scatter(instruction: Instruction) -> Work:
    select, scatter = instruction.called
    sources = instruction.operands[1].shape.elements
    size = math.prod(one.size for one in instruction.proto.window.dimensions)
    return work_inside([select]).times(sources * (size - 1)) + work_inside([scatter]).times(sources)


def _scatter(scatter: Instruction) -> Work:
    updates = scatter.operands[-1].shape.elements
    return work_inside(scatter.called).times(updates)


def _map(mapped: Instruction) -> Work:
    return work_inside(mapped.called).times(mapped.shape.elements)


def _sort(sort: Instruction) -> Work:
    """n log2 n comparisons over all elements of the first operand, one FLOP each."""
    elements = sort.operands[0].shape.elements
    return Work(elements * (elements - 1).bit_length() if elements else 0)


def _fft(fft: Instruction) -> Work:
    """Four multiply-adds a complex product, log2 of each length, every element."""
    logarithms = math.prod(max(0, length.bit_length() - 1) for length in fft.proto.fft_length)
    return Work(FMA * 4 * logarithms * _first_array(fft.operands[0].shape).elements)


def _triangular_solve(solve: Instruction) -> Work:
    return Work(FMA * solve.operands[0].shape.dimensions[-1] * solve.operands[1].shape.elements)


def _cholesky(factor: Instruction) -> Work:
    shape = factor.operands[0].shape
    return Work(shape.dimensions[-1] * shape.elements // 3)


def _random(instruction: Instruction) -> Work:
    """XLA's guess: a number costs as much as a transcendental function."""
    return Work(0.0, instruction.shape.elements)


def _all_reduce(instruction: Instruction) -> Work:
    """XLA's assumption of two participants: one FLOP an element of the result."""
    shapes = [operand.shape for operand in instruction.operands]
    return Work(sum(shape.elements for shape in shapes))


def _async_start(instruction: Instruction) -> Work:
    return work_inside(instruction.called)


def _custom_call(call: Instruction) -> Work:
    if call.proto.custom_call_target in MATMUL_CALLS:
        return _matmul_call(call)
    estimate = cost_estimate(call)
    if estimate is None:
        return UNKNOWN
    return Work(_number(estimate.get("flops")), _number(estimate.get("transcendentals")))


def _matmul_call(call: Instruction) -> Work:
    """2 M N K: the result's elements times what both operands share and the result lacks.

    |lhs| |rhs| |out| = (B M K)(B K N)(B M N), so K = sqrt(|lhs| |rhs| / (|out| B)); the batch B is
    the leading dimensions that all three have in common.
    """
    lhs, rhs = (one.shape for one in call.operands[:2])
    out = _first_array(call.shape)
    batch = 1
    for sizes in zip(*(one.dimensions[:-2] for one in (lhs, rhs, out)), strict=False):
        if len(set(sizes)) > 1:
            break
        batch *= sizes[0]
    if not out.elements:
        return Work()
    square = lhs.elements * rhs.elements // (out.elements * batch)
    contracted = math.isqrt(square)
    fits = contracted**2 == square and lhs.elements % max(1, contracted) == 0
    return Work(FMA * out.elements * contracted) if fits else UNKNOWN


def cost_estimate(call: Instruction) -> dict[str, Any] | None:
    """What the author of a Pallas kernel says it costs; None if nothing."""
    config = call.backend_config.get("custom_call_config")
    estimate = config.get("cost_estimate") if isinstance(config, dict) else None
    return estimate if isinstance(estimate, dict) else None


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    return float(value) if usable else None


_SPECIAL = {
    "dot": _dot,
    "ragged-dot": _unknown,
    "convolution": _convolution,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "scatter": _scatter,
    "map": _map,
    "sort": _sort,
    "fft": _fft,
    "triangular-solve": _triangular_solve,
    "cholesky": _cholesky,
    "rng": _random,
    "rng-bit-generator": _random,
    "all-reduce": _all_reduce,
    "all-reduce-start": _all_reduce,
    "async-start": _async_start,
    "custom-call": _custom_call,
}
