"""Which ops ran in a steady step, how often, and from which site each came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tpu_perf.analysis.run_details import ProgramOp, RunDetails
from tpu_perf.analysis.rung_record import RunTables

NO_OP = -1  # position of what stands for a program whose ops are not known

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedOps:
    """`rows`: program, position, op, call, site, per_step (mean executions in a steady step).
    `steps`: how many steady steps the means are over. `programs`: executions of each program in a
    steady step. `notes`: what had to be assumed."""

    rows: pd.DataFrame
    steps: int
    programs: pd.Series[float]
    notes: tuple[str, ...]


def executed_ops(tables: RunTables, details: RunDetails) -> ExecutedOps:
    """The ops of all programs that timed steps executed.

    A program of one op has the site of the dispatch that ran it. A deferred segment has the sites
    of the dispatches that recorded it, where their ops match its own in order; otherwise, and for
    compiled graphs, its ops have the sites they had when the program was first built.
    """
    executes = tables.timed_events("execute")
    steps = len(tables.timed)
    counts: Counter[tuple[int, int, str, int, int]] = Counter()
    dispatches = _by_program(tables.timed_events("dispatch"), ("t_start_ns", "t_end_ns", "site"))
    reused = 0
    for number, (starts,) in _by_program(executes, ("t_start_ns",)).items():
        ops = details.program_ops.get(number)
        if ops is None:
            ops = [ProgramOp(position=NO_OP, op=_name_of(tables, number), call=-1, site=-1)]
        if len(ops) == 1:
            for site, runs in _dispatch_sites(dispatches.get(number), starts).items():
                counts[number, *_with_site(ops[0], site)] += runs
            continue
        captured = None
        for sites, runs in Counter(_segment_sites(tables, starts, ops)).items():
            if sites is None and all(op.site < 0 for op in ops):
                captured = captured or _captured_sites(tables, number, ops)
                sites = captured
            if sites is None:
                reused += runs
            for index, op in enumerate(ops):
                counts[number, *_with_site(op, -1 if sites is None else sites[index])] += runs
    rows = pd.DataFrame(
        [(*key, runs / max(1, steps)) for key, runs in counts.items()],
        columns=["program", "position", "op", "call", "site", "per_step"],
    )
    notes = []
    if reused and (tables.programs["kind"] == "segment").any():
        notes.append(
            f"{reused:,} executions of programs of several ops have the lines and modules of the "
            "recording that first built them"
        )
    per_program = executes["program"].value_counts() / max(1, steps)
    return ExecutedOps(rows=rows, steps=steps, programs=per_program, notes=tuple(notes))


def _name_of(tables: RunTables, program: int) -> str:
    if program in tables.programs.index:
        return f"program::{tables.programs['name'].astype(str)[program]}"
    return f"program::{program}"


def _with_site(op: ProgramOp, site: int) -> tuple[int, str, int, int]:
    return op.position, op.op, op.call, op.site if site < 0 else site


def enclosing(starts: Integers, ends: Integers, moments: Integers) -> Integers:
    """For each moment the index of the last span that starts before it, if it still lasts, else
    -1. Spans are sorted by start."""
    if not len(starts):
        return np.full(len(moments), -1, np.int64)
    index = np.searchsorted(starts, moments, side="right") - 1
    inside = (index >= 0) & (ends[np.clip(index, 0, None)] >= moments)
    return np.where(inside, index, -1).astype(np.int64)


def _by_program(events: pd.DataFrame, columns: Sequence[str]) -> dict[int, list[Integers]]:
    """These columns of each program's events, in the order in which they started."""
    order = np.lexsort((events["t_start_ns"].to_numpy(), events["program"].to_numpy()))
    programs, begin = np.unique(events["program"].to_numpy(np.int64)[order], return_index=True)
    split = [np.split(events[column].to_numpy(np.int64)[order], begin[1:]) for column in columns]
    return dict(zip(programs.tolist(), map(list, zip(*split, strict=True)), strict=False))


def _dispatch_sites(dispatches: Sequence[Integers] | None, starts: Integers) -> Counter[int]:
    """How often a program ran from each site, -1 where no dispatch of it was open."""
    if dispatches is None:
        return Counter({-1: len(starts)})
    begun, ended, sites = dispatches
    found = enclosing(begun, ended, starts)
    return Counter(np.where(found >= 0, sites[found], -1).tolist())


def _captured_sites(
    tables: RunTables, program: int, ops: Sequence[ProgramOp]
) -> tuple[int, ...] | None:
    """The sites of the dispatches that recorded a whole step, in the step that first ran it."""
    executes = tables.events("execute")
    executes = executes[(executes["program"] == program) & (executes["step"] >= 0)]
    recorded = tables.events("dispatch")
    recorded = recorded[(recorded["program"] == -1) & (recorded["site"] >= 0)]
    for step, started in zip(executes["step"], executes["t_start_ns"], strict=True):
        own = recorded[(recorded["step"] == step) & (recorded["t_start_ns"] < started)]
        if not own.empty:
            own = own.sort_values("t_start_ns")
            return _matched(own["op"].astype(str), own["site"], ops)
    return None


def _segment_sites(
    tables: RunTables, starts: Integers, ops: Sequence[ProgramOp]
) -> list[tuple[int, ...] | None]:
    """For each execution the sites of the dispatches that recorded its ops, None if unknown."""
    flushes = tables.timed_events("flush").sort_values("t_start_ns")
    if flushes.empty:
        return [None] * len(starts)
    recorded = tables.timed_events("dispatch")
    recorded = recorded[recorded["program"] == -1].sort_values("t_start_ns")
    times = recorded["t_start_ns"].to_numpy(np.int64)
    names, sites = recorded["op"].astype(str).to_numpy(), recorded["site"].to_numpy(np.int64)
    begun = flushes["t_start_ns"].to_numpy(np.int64)
    found = enclosing(begun, flushes["t_end_ns"].to_numpy(np.int64), starts)
    out: list[tuple[int, ...] | None] = []
    for index in found:
        if index < 0:
            out.append(None)
            continue
        since = np.searchsorted(times, begun[index - 1], "left") if index else 0
        until = np.searchsorted(times, begun[index], "right")
        out.append(_matched(names[since:until], sites[since:until], ops))
    return out


def _matched(
    names: Iterable[str], sites: Iterable[int], ops: Sequence[ProgramOp]
) -> tuple[int, ...] | None:
    """The sites of a subsequence of dispatches with the ops' names; views between are skipped."""
    out = []
    position = 0
    for name, site in zip(names, sites, strict=True):
        if position < len(ops) and name == ops[position].op:
            out.append(int(site))
            position += 1
    return tuple(out) if position == len(ops) else None
