"""Where the host waits for the device inside steady steps."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tpu_perf.analysis.executed_ops import enclosing
from tpu_perf.analysis.run_details import UNKNOWN, RunDetails
from tpu_perf.analysis.rung_record import NS, RunTables


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSync:
    """Waits of one reason at one line, means of a steady step. `certain` is false where the line
    is that of the dispatch before the wait, because the wait is inside none."""

    reason: str
    line: str
    certain: bool
    per_step: float
    seconds: float


def host_syncs(tables: RunTables, details: RunDetails) -> tuple[HostSync, ...]:
    """Waits before the step function returned; the fence after it is the measurement's own.

    The line is that of the dispatch in which the wait lies. Source: sync and dispatch events.
    """
    syncs = tables.timed_events("sync")
    if syncs.empty:
        return ()
    returned = syncs["step"].map(tables.timed.set_index("step")["t_dispatched_ns"])
    syncs = syncs[syncs["t_start_ns"].to_numpy() < returned.to_numpy()]
    dispatches = tables.timed_events("dispatch").sort_values("t_start_ns")
    starts = dispatches["t_start_ns"].to_numpy(np.int64)
    ends = dispatches["t_end_ns"].to_numpy(np.int64)
    sites = dispatches["site"].to_numpy(np.int64)
    moments = syncs["t_start_ns"].to_numpy(np.int64)
    inside = enclosing(starts, ends, moments)
    before = np.searchsorted(starts, moments, side="right") - 1
    totals: dict[tuple[str, str, bool], list[int]] = defaultdict(list)
    lengths = (syncs["t_end_ns"] - syncs["t_start_ns"]).to_numpy(np.int64)
    for row, reason in enumerate(syncs["reason"].astype(str)):
        certain = bool(inside[row] >= 0)
        index = int(inside[row] if certain else before[row])
        site = details.site(int(sites[index])) if index >= 0 else None
        line = UNKNOWN if site is None else site.line_label
        totals[reason, line, certain].append(int(lengths[row]))
    steps = max(1, len(tables.timed))
    out = [
        HostSync(
            reason=reason, line=line, certain=certain, per_step=len(found) / steps,
            seconds=sum(found) * NS / steps,
        )
        for (reason, line, certain), found in totals.items()
    ]  # fmt: skip
    return tuple(sorted(out, key=lambda row: -row.seconds))
