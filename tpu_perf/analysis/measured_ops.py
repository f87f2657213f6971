"""Every op of a steady step with its FLOPs, bytes and device time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tpu_perf.analysis import rematerialisation
from tpu_perf.analysis.device_instructions import NO_DEVICE_EVENTS, DeviceTime, device_time
from tpu_perf.analysis.executed_ops import ExecutedOps, executed_ops
from tpu_perf.analysis.op_flops import conventions
from tpu_perf.analysis.op_flops.formulas import Attention
from tpu_perf.analysis.program_split import RULE, ProgramSplit, split_program
from tpu_perf.analysis.run_details import RunDetails, records
from tpu_perf.analysis.rung_record import RunTables

#: Columns that add up over ops, each a mean over steady steps; NaN where not known.
ADDITIVE = ("model_flops", "hardware_flops", "boundary_bytes", "accessed_bytes", "device_ns")

HARDWARE_CONVENTION = (
    "hardware FLOPs: what is executed, recomputation and elementwise work included; instructions' "
    "FLOPs x trip count, else XLA's cost analysis, else by formula"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOps:
    """`rows`: those of ExecutedOps with `recomputed` (executions a step that compute a forward op
    again) and the columns ADDITIVE. `unknown`: column -> why -> executions a step of which it is
    not known. `notes`: conventions and what had to be assumed."""

    rows: pd.DataFrame
    steps: int
    device: DeviceTime | None
    unknown: Mapping[str, Mapping[str, float]]
    notes: tuple[str, ...]
    flops_sources: Mapping[str, float]  # source of hardware FLOPs -> executions a step
    unattributed_device_ns: float  # of programs that steady steps do not execute


def measured_ops(tables: RunTables, details: RunDetails, attention: Attention) -> MeasuredOps:
    """Join what ran in steady steps with formulas, programs, instructions and device events."""
    tables = tables.recorded
    executed = executed_ops(tables, details)
    rows = executed.rows.copy()
    unknown: dict[str, dict[str, float]] = {column: defaultdict(float) for column in ADDITIVE}
    notes = dict.fromkeys([*conventions(attention), HARDWARE_CONVENTION, *executed.notes])
    rows["recomputed"] = rematerialisation.recomputed_per_step(rows, details, attention)
    if rows["recomputed"].any():
        notes[rematerialisation.RULE] = None
    rows["model_flops"] = _model_flops(rows, details, attention, unknown["model_flops"], notes)
    flops = _figures(tables, "flops")
    splits = {
        program: split_program(program, flops.get(program), details, attention)
        for program in map(int, executed.programs.index)
    }
    device = device_time(tables)
    if device is None:
        unknown["device_ns"][NO_DEVICE_EVENTS] = float(executed.programs.sum())
    of_program = _per_program(tables, executed, splits, unknown)
    spread = {column: np.zeros(len(rows)) for column in ADDITIVE if column != "model_flops"}
    device_shares = _device_shares(device, splits)
    for index, (program, position, runs) in enumerate(
        rows[["program", "position", "per_step"]].itertuples(index=False)
    ):
        split, figures = splits[int(program)], of_program[int(program)]
        for column, shares in (
            ("hardware_flops", split.flops),
            ("boundary_bytes", split.moved),
            ("accessed_bytes", split.moved),
        ):
            spread[column][index] = figures[column] * shares.get(int(position), 0.0) * runs
        spread["device_ns"][index] = (
            np.nan if device is None else device_shares.get((int(program), int(position)), 0) * runs
        )
    for column, values in spread.items():
        rows[column] = values
    if any(len(details.program_ops.get(program, ())) > 1 for program in splits):
        notes[RULE] = None
    sources: dict[str, float] = defaultdict(float)
    for program, runs in executed.programs.items():
        sources[splits[int(str(program))].flops_source] += float(runs)
    placed = 0.0 if device is None else float(rows["device_ns"].sum())
    return MeasuredOps(
        rows=rows,
        steps=executed.steps,
        device=device,
        unknown={column: dict(reasons) for column, reasons in unknown.items() if reasons},
        notes=tuple(notes),
        flops_sources=dict(sources),
        unattributed_device_ns=0.0 if device is None else max(0.0, device.busy_ns - placed),
    )


def _model_flops(
    rows: pd.DataFrame, details: RunDetails, attention: Attention,
    unknown: dict[str, float], notes: dict[str, None],
) -> list[float]:  # fmt: skip
    out = []
    for row in records(rows):
        found = details.flops(row.op, row.call, attention)
        if found.model is None:
            unknown[found.reason or row.op] += row.per_step
            out.append(float("nan"))
            continue
        if found.note:
            notes[found.note] = None
        out.append(found.model * (row.per_step - row.recomputed))
    return out


def _figures(tables: RunTables, column: str) -> dict[int, float]:
    """A column of the program table; null, NaN and negative figures are not known."""
    values = tables.programs[column].astype("float64")
    return {int(str(program)): float(value) for program, value in values[values >= 0].items()}


def _per_program(
    tables: RunTables,
    executed: ExecutedOps,
    splits: Mapping[int, ProgramSplit],
    unknown: Mapping[str, dict[str, float]],
) -> dict[int, dict[str, float]]:
    """FLOPs and bytes of one execution of each program, NaN where not known."""
    out = {}
    reads, writes, touched = (
        _figures(tables, name) for name in ("bytes_in", "bytes_out", "bytes_accessed")
    )
    for number, runs in executed.programs.items():
        program = int(str(number))
        split = splits[program]
        read, made = reads.get(program), writes.get(program)
        figures = {
            "hardware_flops": split.hardware_flops,
            "boundary_bytes": None if read is None or made is None else read + made,
            "accessed_bytes": touched.get(program),
        }
        reasons = {
            "hardware_flops": split.flops_source,
            "boundary_bytes": "the program table does not have its bytes",
            "accessed_bytes": "XLA gave no figure",
        }
        for column, value in figures.items():
            if value is None:
                unknown[column][reasons[column]] += float(runs)
        out[program] = {c: float("nan") if v is None else v for c, v in figures.items()}
    return out


def _device_shares(
    device: DeviceTime | None, splits: Mapping[int, ProgramSplit]
) -> dict[tuple[int, int], float]:
    """Device nanoseconds of one execution of a program that belong to each of its ops."""
    out: dict[tuple[int, int], float] = defaultdict(float)
    if device is None:
        return out
    for (program, instruction), nanoseconds in device.ns.items():
        runs = device.executions.get(program, 0.0)
        split = splits.get(program)
        if split is None or not runs:
            continue
        for position, share in split.instruction(instruction).items():
            out[program, position] += nanoseconds / runs * share
    return out
