"""Live device bytes over a steady step, and what is alive when they are most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tpu_perf.analysis.buffer_lifetimes import GROUPS, lifetimes
from tpu_perf.analysis.device_memory import live_in_step, typical_step
from tpu_perf.analysis.run_details import UNKNOWN, RunDetails, records
from tpu_perf.analysis.rung_record import RunTables
from tpu_perf.record.metric import Metric

NO_MEMORY_EVENTS = "no memory events in steady steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes alive at the peak that belong together: a group, or a group at one line."""

    group: str
    where: str
    nbytes: int
    buffers: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The peak over steady steps, in bytes.

    `tensors`: live buffers. `with_temporaries`: live buffers when a program was enqueued plus that
    program's own temporaries, at most over all executions: what an allocator without
    fragmentation needs. `temporaries`: the largest of the programs' own. `groups` and `lines`
    add up to `tensors` + `unseen_bytes`: buffers released while nothing was recorded, which look
    alive. `timeline`: t_s since the start of `step` and live_bytes.
    """

    step: int | None
    after_step_start_s: float | None
    phase: str
    tensors: Metric
    with_temporaries: Metric
    temporaries: Metric
    temporaries_of: str
    groups: tuple[Held, ...]
    lines: tuple[Held, ...]
    unseen_bytes: int
    timeline: pd.DataFrame


def memory_peak(tables: RunTables, details: RunDetails) -> MemoryPeak:
    """Find the moment of most live bytes in steady steps and sort what was alive then."""
    events = tables.timed_events("memory")
    if not events["t_ns"].is_monotonic_increasing:
        events = events.sort_values("t_ns", kind="stable")
    if events.empty:
        missing = Metric.missing("bytes", NO_MEMORY_EVENTS)
        return MemoryPeak(
            step=None, after_step_start_s=None, phase="", tensors=missing,
            with_temporaries=missing, temporaries=missing, temporaries_of="", groups=(), lines=(),
            unseen_bytes=0, timeline=pd.DataFrame({"t_s": [], "live_bytes": []}),
        )  # fmt: skip
    at = int(events["live_bytes"].to_numpy().argmax())
    moment, peak = int(events["t_ns"].iloc[at]), int(events["live_bytes"].iloc[at])
    step = int(events["step"].iloc[at])
    begun = int(tables.steps.loc[tables.steps["step"] == step, "t_start_ns"].iloc[0])
    table = lifetimes(_around(tables.events("memory"), moment), tables, details)
    alive = table[(table["t_start_ns"] <= moment) & (table["t_end_ns"] > moment)]
    groups, lines = _held(alive, peak, details)
    largest, program = _temporaries(tables)
    typical = typical_step(tables)
    site = details.site(int(events["site"].iloc[at]))
    return MemoryPeak(
        step=step,
        after_step_start_s=(moment - begun) * 1e-9,
        phase=UNKNOWN if site is None else site.phase,
        tensors=Metric(value=float(peak), unit="bytes", provenance="measured"),
        with_temporaries=_with_temporaries(tables, events),
        temporaries=largest,
        temporaries_of=program,
        groups=groups,
        lines=lines,
        unseen_bytes=max(0, int(alive["nbytes"].sum()) - peak),
        timeline=live_in_step(tables, step if typical is None else typical),
    )


def _around(events: pd.DataFrame, moment: int) -> pd.DataFrame:
    """Of each buffer the last event until the moment and the first one after it, which are all
    that decide whether it was alive then."""
    if not events["t_ns"].is_monotonic_increasing:
        events = events.sort_values("t_ns", kind="stable")
    until = int(np.searchsorted(events["t_ns"].to_numpy(np.int64), moment, side="right"))
    last = events.iloc[:until].drop_duplicates("buffer", keep="last")
    return pd.concat([last, events.iloc[until:].drop_duplicates("buffer")])


def _held(
    alive: pd.DataFrame, peak: int, details: RunDetails
) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
    """Groups, and groups by line; what no event explains is `before recording`."""
    by_group: dict[str, list[int]] = {}
    by_line: dict[tuple[str, str], tuple[list[int], list[str]]] = {}
    for row in records(alive):
        site = details.site(int(row.site))
        where = UNKNOWN if site is None else site.line_label
        group = str(row.group) if row.group in GROUPS else "other"
        by_group.setdefault(group, []).append(int(row.nbytes))
        sizes, names = by_line.setdefault((group, where), ([], []))
        sizes.append(int(row.nbytes))
        if row.name:
            names.append(str(row.name))
    unexplained = peak - int(alive["nbytes"].sum())
    if unexplained > 0:
        by_group.setdefault("before recording", []).append(unexplained)
        sizes, _ = by_line.setdefault(("before recording", UNKNOWN), ([], []))
        sizes.append(unexplained)
    groups = [
        Held(group=group, where="", nbytes=sum(by_group[group]), buffers=len(by_group[group]))
        for group in GROUPS
        if group in by_group
    ]
    lines = [
        Held(group=group, where=where, nbytes=sum(sizes), buffers=len(sizes), names=tuple(names))
        for (group, where), (sizes, names) in by_line.items()
    ]
    lines.sort(key=lambda held: -held.nbytes)
    return tuple(groups), tuple(lines)


def _temp_bytes(tables: RunTables) -> pd.Series[float]:
    known = tables.programs["temp_bytes"].astype("float64")
    return known[known >= 0]


def _temporaries(tables: RunTables) -> tuple[Metric, str]:
    """The most temporary bytes that a program of steady steps has for itself."""
    known = _temp_bytes(tables)
    executed = tables.timed_events("execute")["program"].unique()
    missing = [program for program in executed if program not in known.index]
    of_executed = known[known.index.isin(executed)]
    if of_executed.empty or missing:
        reason = f"XLA gave no figure for {len(missing):,} of {len(executed):,} programs"
        return Metric.missing("bytes", reason), ""
    most = int(str(of_executed.idxmax()))
    name = str(tables.programs["name"].astype(str)[most])
    value = float(of_executed[most])
    return Metric(value=value, unit="bytes", provenance="predicted"), f"{most} {name}"


def _with_temporaries(tables: RunTables, memory: pd.DataFrame) -> Metric:
    known = _temp_bytes(tables)
    executes = tables.timed_events("execute").sort_values("t_start_ns")
    if executes.empty or not executes["program"].isin(known.index).all():
        return Metric.missing("bytes", "the temporary bytes of some programs are not known")
    times = memory["t_ns"].to_numpy(np.int64)
    live = memory["live_bytes"].to_numpy(np.int64)
    # A program's results are allocated inside the call that enqueues it.
    index = np.searchsorted(times, executes["t_end_ns"].to_numpy(np.int64), side="right") - 1
    before = live[0] - int(memory["delta_bytes"].iloc[0])
    levels = np.where(index >= 0, live[np.clip(index, 0, None)], before)
    total = levels + executes["program"].map(known).to_numpy(np.float64)
    value = max(float(total.max()), float(live.max()))
    return Metric(value=value, unit="bytes", provenance="derived")
