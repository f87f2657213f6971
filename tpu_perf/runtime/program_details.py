"""What the programs of this process compute: their ops, and the instructions XLA made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tpu_perf.errors import HloProblem
from tpu_perf.hlo.collectives import collectives as hlo_collectives
from tpu_perf.hlo.cost import costs
from tpu_perf.hlo.module import Module, read_module
from tpu_perf.record.details import (
    CALL_COLUMNS,
    COLLECTIVE_COLUMNS,
    INSTRUCTION_COLUMNS,
    PROGRAM_OP_COLUMNS,
)
from tpu_perf.record.store import table_of_rows
from tpu_perf.runtime.call_description import Part

if TYPE_CHECKING:
    import pyarrow as pa

    from tpu_perf.recorder.sites import Sites
    from tpu_perf.runtime.program_cache import Program

UNKNOWN = -1


def detail_tables(programs: Iterable[Program], sites: Sites) -> Mapping[str, pa.Table]:
    """The tables `calls`, `program_ops`, `instructions` and `sites` of these programs, and
    `collectives` where one runs on several devices; places that a graph knows of its ops are added
    to `sites`."""
    calls: dict[tuple[Any, ...], int] = {}
    ops: list[tuple[Any, ...]] = []
    instructions: list[tuple[Any, ...]] = []
    collectives: list[tuple[Any, ...]] = []
    for program in programs:
        for position, part in enumerate(program.parts()):
            what = (part.op, part.names, part.arguments, part.results, part.bytes_in,
                    part.bytes_out)  # fmt: skip
            call = calls.setdefault(what, len(calls))
            ops.append((program.index, position, part.op, call, _site(part, sites)))
        module = _module(program)
        if module is not None:
            instructions += _instructions(program, module)
            collectives += _collectives(program, module)
    found = {
        "calls": table_of_rows(CALL_COLUMNS, [(call, *what) for what, call in calls.items()]),
        "program_ops": table_of_rows(PROGRAM_OP_COLUMNS, ops),
        "instructions": table_of_rows(INSTRUCTION_COLUMNS, instructions),
        "sites": sites.table(),
    }
    if collectives:
        found["collectives"] = table_of_rows(COLLECTIVE_COLUMNS, collectives)
    return found


def _site(part: Part, sites: Sites) -> int:
    place = part.place
    if place is None:
        return UNKNOWN
    return sites.add(place.file, place.line, place.function, place.module, place.module_class,
                     place.phase, place.stack)  # fmt: skip


def _module(program: Program) -> Module | None:
    data = program.executable.hlo()
    try:
        return None if data is None else read_module(data)
    except HloProblem:  # XLA's own module: what cannot be read is not known
        return None


def _instructions(program: Program, module: Module) -> list[tuple[Any, ...]]:
    try:
        rows = costs(module)
    except HloProblem:
        return []
    single = program.ops == 1
    found = []
    for cost in rows:
        row = list(cost.row(program.index))
        if single and not cost.positions:
            row[5] = "[0]"  # a program of one op computes nothing else
        found.append(tuple(row))
    return found


def _collectives(program: Program, module: Module) -> list[tuple[Any, ...]]:
    placement = program.placement
    if placement is None:
        return []
    try:
        rows = hlo_collectives(module, placement.axes, placement.parameters, placement.batch_axes)
    except ValueError:  # groups that are none of this mesh
        return []
    return [row.row(program.index) for row in rows]
