"""When the device does nothing useful in a step, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tpu_perf.analysis.device_instructions import instruction_events
from tpu_perf.analysis.lanes import Spans
from tpu_perf.analysis.run_details import UNKNOWN, RunDetails
from tpu_perf.analysis.rung_record import NS, RunTables
from tpu_perf.record.metric import Metric

Integers = npt.NDArray[np.int64]

#: Causes in the order in which they are asked: an instant has the first that holds.
CAUSES: dict[str, str] = {
    "compile": "a program was compiled or loaded",
    "transfer": "a copy between host and device was under way",
    "collective": "only a collective was running: nothing was overlapped with it",
    "input": "the program waited for its data",
    "sync": "the host had waited for the device, which then waited for the host's next program",
    "host-bound": "the host had not enqueued the next program yet",
}
_COLLECTIVE = re.compile(
    r"all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
)
FROM_DEVICE = "gaps between device events, in the steps in which XLA's profiler ran"
FROM_EXECUTE = (
    "no device events: gaps between the calls that enqueue programs, in timed steps; a device that "
    "works on after such a call is taken for idle"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One stretch without work. `line` is that of the first dispatch after it."""

    step: int
    after_step_start_s: float
    seconds: float
    cause: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Seconds of a mean step by cause, keys of CAUSES; `busy` is the rest of `step_s`. `method`
    says what the gaps are between. `gaps`: the longest."""

    step_s: Metric
    busy: Metric
    causes: Mapping[str, Metric]
    method: str
    gaps: tuple[Gap, ...]


def idle(tables: RunTables, details: RunDetails, longest: int = 10) -> Idle | None:
    """Idle time by cause; None where neither device nor execute events tell."""
    events = instruction_events(tables)
    method = FROM_EXECUTE if events.empty else FROM_DEVICE
    if events.empty:
        events = tables.timed_events("execute")
        working, collectives = events, events.iloc[:0]
        steps = tables.timed
    else:
        collective = _is_collective(events, details)
        working, collectives = events[~collective], events[collective]
        steps = tables.steps[tables.steps["step"].isin(events["step"].unique())]
    if events.empty or steps.empty:
        return None
    bounds = steps[["t_start_ns", "t_end_ns"]].to_numpy(dtype=np.int64)
    gaps, of_step = _gaps(_union(_spans(working)), bounds)
    lasted = gaps[:, 1] - gaps[:, 0]
    causes = _causes(tables, _spans(collectives), gaps)
    totals = dict(zip(CAUSES, causes.sum(axis=0).tolist(), strict=True))
    length = int((bounds[:, 1] - bounds[:, 0]).sum())
    lines = _Lines(tables, details)
    names, numbers = list(CAUSES), steps["step"].tolist()
    longest_gaps = [
        Gap(
            step=int(numbers[of_step[index]]),
            after_step_start_s=int(gaps[index, 0] - bounds[of_step[index], 0]) * NS,
            seconds=int(lasted[index]) * NS,
            cause=names[int(causes[index].argmax())],
            line=lines.next_after(int(gaps[index, 1])),
        )
        for index in np.argsort(-lasted, kind="stable")[:longest].tolist()
    ]
    count = len(steps)
    derived = {
        cause: Metric(value=total * NS / count, unit="s", provenance="derived")
        for cause, total in totals.items()
    }
    step_s = length * NS / count
    busy = step_s - sum(totals.values()) * NS / count
    return Idle(
        step_s=Metric(value=step_s, unit="s", provenance="measured"),
        busy=Metric(value=busy, unit="s", provenance="derived"),
        causes=derived, method=method, gaps=tuple(longest_gaps),
    )  # fmt: skip


def _is_collective(events: pd.DataFrame, details: RunDetails) -> pd.Series[bool]:
    """By the instruction's opcode where the table has it, else by its name."""
    opcodes = {
        (program, instruction.name): f"{instruction.opcode} {instruction.category}"
        for program, instructions in details.instructions.items()
        for instruction in instructions
    }
    keys = zip(events["program"], events["instruction"].astype(str), strict=True)
    found = [
        bool(_COLLECTIVE.search(opcodes.get((int(program), name), name))) for program, name in keys
    ]
    return pd.Series(found, index=events.index, dtype=bool)


def _spans(events: pd.DataFrame) -> Spans:
    rows = events[["t_start_ns", "t_end_ns"]].to_numpy(dtype=np.int64)
    return rows[np.argsort(rows[:, 0], kind="stable")]


def _union(spans: Spans) -> Spans:
    """Disjoint spans in order that cover what these, sorted by start, cover."""
    if not len(spans):
        return spans
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.flatnonzero(np.concatenate([[True], spans[1:, 0] > reach[:-1]]))
    last = np.concatenate([first[1:] - 1, [len(spans) - 1]])
    return np.column_stack([spans[first, 0], reach[last]])


def _gaps(busy: Spans, steps: Spans) -> tuple[Spans, Integers]:
    """What of each step lies outside the disjoint spans `busy`, and the step's row, in order."""
    found, rows = [np.empty((0, 2), np.int64)], [np.empty(0, np.int64)]
    for row, (start, end) in enumerate(steps.tolist()):
        first = np.searchsorted(busy[:, 1], start, side="right")
        last = np.searchsorted(busy[:, 0], end, side="left")
        inside = np.clip(busy[first:last], start, end)
        begun = np.concatenate([[start], inside[:, 1]])
        ended = np.concatenate([inside[:, 0], [end]])
        kept = ended > begun
        found.append(np.column_stack([begun, ended])[kept])
        rows.append(np.full(int(kept.sum()), row, np.int64))
    return np.concatenate(found), np.concatenate(rows)


def _covered_before(spans: Spans, moments: Integers) -> Integers:
    """Nanoseconds of the disjoint spans that lie before each moment."""
    if not len(spans):
        return np.zeros(len(moments), np.int64)
    begun = np.searchsorted(spans[:, 0], moments, side="right")
    whole = np.concatenate([[0], np.cumsum(spans[:, 1] - spans[:, 0])])[begun]
    beyond = np.maximum(spans[np.maximum(begun, 1) - 1, 1] - moments, 0)
    return np.asarray(whole - np.where(begun > 0, beyond, 0), dtype=np.int64)


def _causes(tables: RunTables, collectives: Spans, gaps: Spans) -> Integers:
    """Nanoseconds of each gap by cause, columns in the order of CAUSES. What no event explains is
    the host's, or the sync's if the host was waiting for the device when the gap began."""
    annotations = tables.events("annotation")
    certain = {
        "compile": _spans(tables.events("compile")),
        "transfer": _spans(tables.events("transfer")),
        "collective": collectives,
        "input": _spans(annotations[annotations["kind"].astype(str) == "data"]),
    }
    out = np.zeros((len(gaps), len(CAUSES)), np.int64)
    columns = {cause: number for number, cause in enumerate(CAUSES)}
    taken = np.empty((0, 2), np.int64)
    covered = np.zeros(len(gaps), np.int64)
    for cause, spans in certain.items():
        both = np.concatenate([taken, spans])
        taken = _union(both[np.argsort(both[:, 0], kind="stable")])
        together = _covered_before(taken, gaps[:, 1]) - _covered_before(taken, gaps[:, 0])
        out[:, columns[cause]] = together - covered
        covered = together
    rest = gaps[:, 1] - gaps[:, 0] - covered
    waits = _union(_spans(tables.events("sync")))
    before = np.searchsorted(waits[:, 0], gaps[:, 0], side="right")
    ends = np.concatenate([[np.iinfo(np.int64).min], waits[:, 1]])[before]
    waiting = ends >= gaps[:, 0]
    out[waiting, columns["sync"]] = rest[waiting]
    out[~waiting, columns["host-bound"]] = rest[~waiting]
    return out


class _Lines:
    """The line of the first dispatch after a moment."""

    def __init__(self, tables: RunTables, details: RunDetails) -> None:
        dispatches = tables.events("dispatch").sort_values("t_start_ns")
        self._times = dispatches["t_start_ns"].to_numpy(np.int64)
        self._sites = dispatches["site"].to_numpy(np.int64)
        self._details = details

    def next_after(self, moment: int) -> str:
        index = int(np.searchsorted(self._times, moment, side="left"))
        site = self._details.site(int(self._sites[index])) if index < len(self._times) else None
        return UNKNOWN if site is None else site.line_label
