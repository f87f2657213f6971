"""The category of an instruction, by the names XProf shows."""

from __future__ import annotations

from tpu_perf.hlo.module import Instruction

_PLAIN = """
    abs add and bitcast-convert ceil clamp compare complex convert count-leading-zeros divide floor
    imag is-finite maximum minimum multiply negate not or popcnt real reduce-precision remainder
    round-nearest-afz round-nearest-even select shift-left shift-right-arithmetic
    shift-right-logical sign stochastic-convert subtract xor"""
_TRANSCENDENTAL = """
    acos acosh asin asinh atan2 atanh cbrt cosine cosh erf exponential exponential-minus-one log
    log-plus-one logistic power rsqrt sine sinh sqrt tan tanh"""
#: What XLA calls elementwise: opcode -> whether its cost analysis counts the op as transcendental
#: rather than as a FLOP an element (`HloCostAnalysis::HandleElementwiseOp`; checked op by op
#: against jaxlib 0.10.2).
ELEMENTWISE: dict[str, bool] = {
    **dict.fromkeys(_PLAIN.split(), False),
    **dict.fromkeys(_TRANSCENDENTAL.split(), True),
}
_FUSIONS = {
    "kLoop": "loop fusion",
    "kInput": "input fusion",
    "kOutput": "output fusion",
    "kCustom": "custom fusion",
}
MATMULS = frozenset({"dot", "convolution", "ragged-dot"})


def category(instruction: Instruction) -> str:
    """XLA's own category (`HloInstruction::ToCategory`), and "convolution fusion" as on TPUs.

    There a fusion with a matrix multiplication in it is a "convolution fusion" whatever its kind,
    since TPUs run dots as convolutions; here that holds for fused dots too.
    """
    opcode = instruction.opcode
    if opcode == "fusion":
        if any(inner.opcode in MATMULS for inner in instruction.fused()):
            return "convolution fusion"
        return _FUSIONS.get(instruction.fusion_kind, "fusion")
    if opcode in ("transpose", "copy", "reshape"):
        return "data formatting"
    if opcode == "convolution":
        dimensions = instruction.proto.window.dimensions
        base = " base-dilated" if any(one.base_dilation > 1 for one in dimensions) else ""
        window = " window-dilated" if any(one.window_dilation > 1 for one in dimensions) else ""
        return f"convolution{base}{window}"
    if opcode in ELEMENTWISE:
        return "non-fusion elementwise"
    return opcode
