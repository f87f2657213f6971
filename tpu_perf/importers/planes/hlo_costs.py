"""Fills what a capture does not say of its programs from the HLO that it holds.

On TPUs XLA's profiler writes FLOPs, bytes and framework ops beside each instruction, elsewhere
only its name; trip counts of loops it writes nowhere.
"""

from __future__ import annotations

from collections import defaultdict

from tpu_perf.errors import HloProblem
from tpu_perf.hlo.cost import InstructionCost, Totals, costs, totals
from tpu_perf.hlo.module import Module, read_module
from tpu_perf.importers.planes.tables import Collected, Instructions, Row
from tpu_perf.record.details import INSTRUCTION_COLUMNS

_NAMES = [name for name, _ in INSTRUCTION_COLUMNS]
_POSITIONS, _PROGRAM, _INSTRUCTION, _TEXT = (
    _NAMES.index(name) for name in ("positions", "program", "instruction", "text")
)


def fill_from_hlo(into: Collected) -> None:
    """Complete instructions, the ops that they name, and the costs of whole programs. HLO that
    cannot be read is noted, and its program stays as it was."""
    filled = 0
    ran: dict[int, list[int]] = defaultdict(list)
    for index, row in enumerate(into.instructions.rows):
        ran[row[_PROGRAM]].append(index)
    for program, data in into.programs.hlo.items():
        try:
            module = read_module(data)
            rows = costs(module)
        except HloProblem as problem:
            into.notes.append(f"HLO of {into.programs.names[program]}: {problem.message}")
            continue
        filled += _instructions(into.instructions, ran[program], program, module, rows)
        into.programs.costs[program] = _of_program(module, totals(rows))
    if filled:
        into.notes.append(
            f"FLOPs or bytes of {filled:,} instructions are not in the capture: they are counted "
            "from its HLO, by the conventions of XLA's cost analysis"
        )


def _instructions(
    known: Instructions, ran: list[int], program: int, module: Module, rows: list[InstructionCost]
) -> int:
    """Returns of how many instructions that ran (rows `ran` of `known`) the FLOPs came from the
    HLO."""
    costed = {row.instruction: row for row in rows}
    named = {one.name: one for one in module.computation_of}
    seen, filled = set(), 0
    for index in ran:
        row = known.rows[index]
        cost = costed.get(row[_INSTRUCTION])
        if cost is None:
            continue
        seen.add(cost.instruction)
        mine = cost.row(program)
        whole = [counted if value in (None, "") else value
                 for value, counted in zip(row, mine, strict=True)]  # fmt: skip
        filled += row[_NAMES.index("flops")] is None and cost.flops is not None
        if " = " not in whole[_TEXT]:  # its name is all that the capture says
            whole[_TEXT] = cost.text
        if whole[_POSITIONS] == "[]":
            one = named[cost.instruction]
            file, line = module.source(one) or ("", -1)
            whole[_POSITIONS] = known.named_op(program, one.op_name, file, line)
        known.rows[index] = tuple(whole)
    for other in rows:  # those that the profiler did not see run
        costs_nothing = (other.flops, other.bytes_read) == (0.0, 0.0)
        if other.instruction not in seen and not costs_nothing:
            values = list(other.row(program))
            values[_POSITIONS] = "[]"
            known.rows.append(tuple(values))
    return filled


def _of_program(module: Module, found: Totals) -> Row:
    """bytes_in, bytes_out, bytes_accessed and flops of one execution; None where not known."""
    read, written = found.bytes_read.value, found.bytes_written.value
    return (
        sum(one.shape.nbytes for one in module.entry.parameters()),
        module.entry.root.shape.nbytes,
        None if read is None or written is None else read + written,
        found.flops.value,
    )
