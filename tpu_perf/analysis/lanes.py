"""Host lane and device lane of a step, and where the step's wall time went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpu_perf.analysis.rung_record import NS, RunTables, durations
from tpu_perf.analysis.step_time import NO_TIMED_STEPS
from tpu_perf.record.metric import Metric
from tpu_perf.record.run import Facts

Spans = npt.NDArray[np.int64]  # rows of (start, end) in ns

#: Innermost first: where a span lies within another (a dispatch holds a flush that holds an
#: execute), its time belongs to the one named earlier here.
NESTING = ("compile", "execute", "transfer", "sync", "fallback", "flush", "dispatch")

#: Parts of a step in the order they are stacked, with what each means.
PARTS: dict[str, str] = {
    "python": "Python outside any op: model code, autograd, optimizer",
    "dispatch": "op dispatch on the host, without what is nested in it",
    "flush": "cutting deferred segments",
    "execute": "enqueueing programs in XLA (a CPU may compute in this call)",
    "compile": "compiling or loading programs",
    "fallback": "ops computed by torch on the host",
    "transfer": "copies between host and device",
    "sync": "waiting for the device inside the step",
    "fence": "waiting at the fence after the step's last op",
}


def host_time_per_step(tables: RunTables, facts: Facts) -> Metric:
    """Seconds the host is busy in a steady step.

    Facts.host_time_per_step_ns as the engine's probe measured it (Facts.lane_note says how);
    otherwise the median of (t_dispatched - t_start) over timed steps: the time until the step
    function returned, which includes any wait inside it.
    """
    if facts.host_time_per_step_ns is not None:
        return Metric(value=facts.host_time_per_step_ns * NS, unit="s", provenance="measured")
    if tables.timed.empty:
        return Metric.missing("s", NO_TIMED_STEPS)
    dispatched = durations(tables.timed, until="t_dispatched_ns")
    return Metric(value=float(np.median(dispatched)), unit="s", provenance="measured")


def device_time_per_step(facts: Facts) -> Metric:
    """Seconds the device is busy in a steady step, as the engine's probe measured it.

    Source: Facts.device_time_per_step_ns; Facts.lane_note says how, or why it is not known.
    """
    if facts.device_time_per_step_ns is None:
        return Metric.missing("s", facts.lane_note or "this engine cannot tell device from host")
    return Metric(value=facts.device_time_per_step_ns * NS, unit="s", provenance="measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Mean seconds of a timed step by part (keys of PARTS); the parts add up to `total_s`."""

    total_s: float
    parts: dict[str, float]

    def share(self, *names: str) -> float:
        return sum(self.parts.get(name, 0.0) for name in names) / self.total_s


def breakdown(tables: RunTables) -> Breakdown | None:
    """Where timed steps spent their wall time; None without events to tell.

    Until t_dispatched each instant belongs to the innermost event that covers it, or to
    `python`; from t_dispatched to t_end it is the fence. Every instant counts once.
    """
    timed = tables.timed
    if timed.empty or not tables.has_programs:
        return None
    spans = {kind: _spans(tables, kind) for kind in NESTING}
    totals = dict.fromkeys(PARTS, 0)
    for start, dispatched, end in timed[["t_start_ns", "t_dispatched_ns", "t_end_ns"]].to_numpy():
        inside = {kind: _clip(spans[kind], start, dispatched) for kind in NESTING}
        for part, nanoseconds in exclusive(inside).items():
            totals[part] += nanoseconds
        totals["fence"] += end - dispatched
        covered = union_length(np.concatenate(list(inside.values())))
        totals["python"] += (dispatched - start) - covered
    steps = len(timed)
    parts = {part: float(total) * NS / steps for part, total in totals.items()}
    return Breakdown(total_s=sum(parts.values()), parts=parts)


def _spans(tables: RunTables, kind: str) -> Spans:
    frame = tables.timed_events(kind)
    rows = frame[["t_start_ns", "t_end_ns"]].to_numpy(dtype=np.int64)
    return rows[np.argsort(rows[:, 0], kind="stable")]


def _clip(spans: Spans, start: int, end: int) -> Spans:
    chosen = spans[(spans[:, 0] < end) & (spans[:, 1] > start)]
    return np.clip(chosen, start, end)


def exclusive(spans_by_kind: dict[str, Spans]) -> dict[str, int]:
    """Nanoseconds that belong to each kind when overlaps go to the kind earlier in NESTING."""
    out: dict[str, int] = {}
    taken: Spans = np.empty((0, 2), dtype=np.int64)
    covered = 0
    for kind in NESTING:
        taken = np.concatenate([taken, spans_by_kind[kind]])
        together = union_length(taken)
        out[kind] = together - covered
        covered = together
    return out


def union_length(spans: Spans | Iterable[tuple[int, int]]) -> int:
    """Length of the union of spans, in ns."""
    rows = np.asarray(spans, dtype=np.int64).reshape(-1, 2)
    if not len(rows):
        return 0
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    reach = np.maximum.accumulate(rows[:, 1])
    # A span adds what lies beyond the reach of all spans that start before it.
    before = np.concatenate([[rows[0, 0]], reach[:-1]])
    return int((np.maximum(rows[:, 1], before) - np.maximum(rows[:, 0], before)).clip(min=0).sum())
