"""How what a program does as a whole (FLOPs, bytes, time) is shared among the ops in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpu_perf.analysis.op_flops.formulas import Attention
from tpu_perf.analysis.run_details import Instruction, ProgramOp, RunDetails

Shares = Mapping[int, float]  # position -> fraction; they add up to one

RULE = (
    "an instruction that computes several ops is shared among them by their FLOPs by formula, "
    "evenly where they have none; instructions of no op by the shares of the rest"
)

#: They hold other instructions, which are listed themselves.
CONTAINERS = frozenset(("while", "call", "conditional", "async-start", "async-done"))
#: Instructions that may hold products: without their FLOPs the program's are not known. "" is an
#: instruction of which a capture has no more than the name.
_MATTERING = frozenset(("dot", "convolution", "fusion", "custom-call", "ragged-dot", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSplit:
    """Shares of a program's ops. `of_instruction` says which ops an instruction computes; `flops`
    and `moved` share the program's FLOPs and bytes. `hardware_flops` are of one execution;
    `flops_source` says whence: instructions | cost analysis | formula | the reason why unknown."""

    of_instruction: Mapping[str, Shares]
    flops: Shares
    moved: Shares
    hardware_flops: float | None
    flops_source: str

    def instruction(self, name: str) -> Shares:
        """The shares of an instruction; one that no table lists counts like the whole program."""
        return self.of_instruction.get(name) or self.flops


def split_program(
    program: int, cost_flops: float | None, details: RunDetails, attention: Attention
) -> ProgramSplit:
    """The shares of a program's ops. `cost_flops`: XLA's figure for the whole, None if none."""
    ops = details.program_ops.get(program, [])
    instructions = details.instructions.get(program, [])
    formula = {op.position: _executed(op, details, attention) for op in ops}
    known = {position: flops or 0.0 for position, flops in formula.items()}
    by_flops = _normalised(known) or _evenly(list(known) or [-1])
    of_instruction = {i.name: _shares_of(i, known, by_flops) for i in instructions}
    total, source = _hardware(instructions, cost_flops, formula)
    return ProgramSplit(
        of_instruction=of_instruction,
        flops=_summed(instructions, of_instruction, "flops") or by_flops,
        moved=_summed(instructions, of_instruction, "bytes") or _by_own_bytes(ops, details),
        hardware_flops=total,
        flops_source=source,
    )


def _executed(op: ProgramOp, details: RunDetails, attention: Attention) -> float | None:
    return details.flops(op.op, op.call, attention).executed


def _normalised(weights: Mapping[int, float]) -> Shares | None:
    total = sum(weights.values())
    if total <= 0:
        return None
    return {position: weight / total for position, weight in weights.items()}


def _evenly(positions: Sequence[int]) -> Shares:
    return {position: 1 / len(positions) for position in positions}


def _shares_of(instruction: Instruction, flops: Mapping[int, float], whole: Shares) -> Shares:
    positions = [position for position in instruction.positions if position in flops]
    if not positions:
        return whole
    return _normalised({p: flops[p] for p in positions}) or _evenly(positions)


def _summed(
    instructions: Sequence[Instruction], shares: Mapping[str, Shares], what: str
) -> Shares | None:
    """What the instructions say each op has, as shares; None where they do not say enough."""
    out: dict[int, float] = defaultdict(float)
    for instruction in instructions:
        if instruction.opcode in CONTAINERS:
            continue
        amount = instruction.flops if what == "flops" else instruction.bytes_moved
        for position, share in shares[instruction.name].items():
            out[position] += (amount or 0.0) * (instruction.trip_count or 1.0) * share
    return _normalised(out)


def _by_own_bytes(ops: Sequence[ProgramOp], details: RunDetails) -> Shares:
    own = {op.position: float(sum(details.call_bytes.get(op.call, (0, 0)))) for op in ops}
    return _normalised(own) or _evenly(list(own) or [-1])


def _hardware(
    instructions: Sequence[Instruction],
    cost_flops: float | None,
    formula: Mapping[int, float | None],
) -> tuple[float | None, str]:
    """FLOPs as executed, from the best source that knows them all."""
    counted = [i for i in instructions if i.opcode not in CONTAINERS]
    unknown = [
        i
        for i in counted
        if (i.flops is None and i.opcode in _MATTERING) or (i.flops and i.trip_count is None)
    ]
    if counted and not unknown:
        return sum((i.flops or 0.0) * (i.trip_count or 1.0) for i in counted), "instructions"
    if cost_flops is not None and not any(i.opcode == "while" for i in instructions):
        return cost_flops, "cost analysis"
    if formula and all(flops is not None for flops in formula.values()):
        return sum(flops or 0.0 for flops in formula.values()), "formula"
    if cost_flops is not None:
        return None, "XLA's figure counts a loop's body once, and its trip count is not known"
    return None, "neither its instructions nor XLA's cost analysis have FLOPs"
