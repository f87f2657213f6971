"""Device time by instruction, every instant once, from the steps in which XLA's profiler ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tpu_perf.analysis.rung_record import RunTables
from tpu_perf.record.events import MODULE_LANE

NO_DEVICE_EVENTS = "no device events: XLA's profiler ran in no step of this run"

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """`ns`: (program, instruction) -> nanoseconds in a mean profiled step. Where several lanes are
    busy at once each has its part of the instant, so the sum is the time the device is busy.
    `executions`: of each program in a profiled step."""

    ns: Mapping[tuple[int, str], float]
    steps: tuple[int, ...]
    executions: Mapping[int, float]

    @property
    def busy_ns(self) -> float:
        return sum(self.ns.values())


def instruction_events(tables: RunTables) -> pd.DataFrame:
    """Device events of instructions inside steps; whole programs are used where nothing else is."""
    events = tables.events("device")
    events = events[events["step"] >= 0]
    single = events[events["lane"] != MODULE_LANE]
    return events if single.empty else single


def device_time(tables: RunTables) -> DeviceTime | None:
    """Device time by program and instruction; None without device events."""
    events = instruction_events(tables)
    if events.empty:
        return None
    steps = tuple(int(step) for step in sorted(events["step"].unique()))
    totals: dict[tuple[int, str], float] = defaultdict(float)
    names = events["instruction"].astype(str).to_numpy()
    programs = events["program"].to_numpy(np.int64)
    for row, nanoseconds in enumerate(shared_time(events)):
        totals[int(programs[row]), str(names[row])] += float(nanoseconds) / len(steps)
    executes = tables.events("execute")
    counts = executes[executes["step"].isin(steps)]["program"].value_counts() / len(steps)
    executions = {int(str(program)): float(runs) for program, runs in counts.items()}
    return DeviceTime(ns=totals, steps=steps, executions=executions)


def shared_time(events: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Nanoseconds of each event: in its lane without what is nested in it, and an instant in
    which n lanes are busy as 1/n for each. Their sum is the length of the union."""
    starts, ends = events["t_start_ns"].to_numpy(np.int64), events["t_end_ns"].to_numpy(np.int64)
    lanes = events["lane"].astype(str).to_numpy()
    pieces = [
        piece
        for lane in np.unique(lanes)
        for piece in _innermost(starts, ends, np.flatnonzero(lanes == lane))
    ]
    out = np.zeros(len(events))
    if not pieces:
        return out
    begin, end, owner = (np.asarray(column, np.int64) for column in zip(*pieces, strict=True))
    points = np.unique(np.concatenate([begin, end]))
    busy = np.zeros(len(points))
    np.add.at(busy, np.searchsorted(points, begin), 1)
    np.add.at(busy, np.searchsorted(points, end), -1)
    lanes_busy = np.cumsum(busy)[:-1]
    each = np.divide(np.diff(points), lanes_busy, out=np.zeros(len(points) - 1),
                     where=lanes_busy > 0)  # fmt: skip
    until = np.concatenate([[0.0], np.cumsum(each)])
    amounts = until[np.searchsorted(points, end)] - until[np.searchsorted(points, begin)]
    np.add.at(out, owner, amounts)
    return out


def _innermost(starts: Integers, ends: Integers, rows: Integers) -> list[tuple[int, int, int]]:
    """(start, end, row) of the innermost event of one lane, at every instant that has one."""
    order: list[Any] = sorted(rows.tolist(), key=lambda row: (starts[row], -ends[row]))
    pieces: list[tuple[int, int, int]] = []
    open_rows: list[int] = []
    now = 0

    def advance(until: int) -> None:
        nonlocal now
        while open_rows and now < until:
            row = open_rows[-1]
            stop = min(int(ends[row]), until)
            if stop > now:
                pieces.append((now, stop, row))
                now = stop
            if int(ends[row]) <= now:
                open_rows.pop()
        now = max(now, until)

    for row in order:
        advance(int(starts[row]))
        open_rows.append(row)
    if open_rows:
        advance(int(max(ends[row] for row in open_rows)))
    return pieces
