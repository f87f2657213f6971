"""When the device does nothing useful in a step, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tpu_perf.analysis.device_instructions import instruction_events
from tpu_perf.analysis.lanes import Spans, union_length
from tpu_perf.analysis.run_details import UNKNOWN, RunDetails
from tpu_perf.analysis.rung_record import NS, RunTables
from tpu_perf.record.metric import Metric

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
    host = _HostLanes(tables, details, _spans(collectives))
    totals = dict.fromkeys(CAUSES, 0)
    gaps: list[Gap] = []
    length = 0
    for step, start, end in steps[["step", "t_start_ns", "t_end_ns"]].to_numpy():
        length += int(end - start)
        for begun, ended in _gaps(_within(_spans(working), start, end), int(start), int(end)):
            parts = host.causes(begun, ended)
            for cause, nanoseconds in parts.items():
                totals[cause] += nanoseconds
            most = max(parts, key=lambda cause: parts[cause])
            gaps.append(
                Gap(
                    step=int(step),
                    after_step_start_s=(begun - int(start)) * NS,
                    seconds=(ended - begun) * NS,
                    cause=most,
                    line=host.next_line(ended),
                )
            )
    count = len(steps)
    gaps.sort(key=lambda gap: -gap.seconds)
    derived = {
        cause: Metric(value=total * NS / count, unit="s", provenance="derived")
        for cause, total in totals.items()
    }
    step_s = length * NS / count
    busy = step_s - sum(totals.values()) * NS / count
    return Idle(
        step_s=Metric(value=step_s, unit="s", provenance="measured"),
        busy=Metric(value=busy, unit="s", provenance="derived"),
        causes=derived, method=method, gaps=tuple(gaps[:longest]),
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


def _within(spans: Spans, start: int, end: int) -> Spans:
    chosen = spans[(spans[:, 0] < end) & (spans[:, 1] > start)]
    return np.clip(chosen, start, end)


def _gaps(spans: Spans, start: int, end: int) -> list[tuple[int, int]]:
    """What lies between start and end outside all spans, which are sorted by start."""
    out = []
    reach = start
    for begun, ended in spans.tolist():
        if begun > reach:
            out.append((reach, begun))
        reach = max(reach, ended)
    if end > reach:
        out.append((reach, end))
    return out


class _HostLanes:
    """What the host was doing at any time."""

    def __init__(self, tables: RunTables, details: RunDetails, collectives: Spans) -> None:
        annotations = tables.events("annotation")
        self._certain: dict[str, Spans] = {
            "compile": _spans(tables.events("compile")),
            "transfer": _spans(tables.events("transfer")),
            "collective": collectives,
            "input": _spans(annotations[annotations["kind"].astype(str) == "data"]),
        }
        self._syncs = _spans(tables.events("sync"))
        dispatches = tables.events("dispatch").sort_values("t_start_ns")
        self._times = dispatches["t_start_ns"].to_numpy(np.int64)
        self._sites = dispatches["site"].to_numpy(np.int64)
        self._details = details

    def causes(self, begun: int, ended: int) -> dict[str, int]:
        """Nanoseconds of a gap by cause. What no event explains is the host's, or the sync's if
        the host was waiting for the device when the gap began."""
        out = {}
        taken: Spans = np.empty((0, 2), np.int64)
        covered = 0
        for cause, spans in self._certain.items():
            taken = np.concatenate([taken, _within(spans, begun, ended)])
            together = union_length(taken)
            out[cause] = together - covered
            covered = together
        waiting = (self._syncs[:, 0] <= begun) & (self._syncs[:, 1] >= begun)
        out["sync" if waiting.any() else "host-bound"] = ended - begun - covered
        return out

    def next_line(self, moment: int) -> str:
        index = int(np.searchsorted(self._times, moment, side="left"))
        site = self._details.site(int(self._sites[index])) if index < len(self._times) else None
        return UNKNOWN if site is None else site.line_label
