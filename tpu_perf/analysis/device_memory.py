"""Device memory: its peak, its traffic per step, and how it rises and falls within one."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tpu_perf.analysis.rung_record import NS, RunTables, durations
from tpu_perf.analysis.step_time import NO_TIMED_STEPS
from tpu_perf.record.metric import Metric
from tpu_perf.record.run import Facts

NO_PROGRAMS = "this engine records no programs"


def hbm_peak_bytes(tables: RunTables, facts: Facts) -> Metric:
    """Most bytes alive on the device at any moment of the run, set-up and warm-up included.

    The maximum of live_bytes over memory events, which is exact from buffer lifetimes; without
    such events, what the engine itself reports. Temporaries inside a program are not in it.
    Source: memory events, or Facts.hbm_peak_bytes.
    """
    live = tables.events("memory")["live_bytes"]
    if not live.empty:
        return Metric(value=float(live.max()), unit="bytes", provenance="measured")
    if facts.hbm_peak_bytes is None:
        return Metric.missing("bytes", "this engine does not report its memory")
    return Metric(value=float(facts.hbm_peak_bytes), unit="bytes", provenance="measured")


def _per_step(tables: RunTables, bytes_of_program: pd.Series[float]) -> float:
    """Median over timed steps of the bytes of the programs each step executed."""
    executes = tables.timed_events("execute")
    moved = executes["program"].map(bytes_of_program)
    per_step = moved.groupby(executes["step"].to_numpy()).sum()
    return float(per_step.reindex(tables.timed["step"].to_numpy(), fill_value=0).median())


def _unless_missing(tables: RunTables) -> Metric | None:
    if tables.timed.empty:
        return Metric.missing("bytes", NO_TIMED_STEPS)
    if tables.timed_events("execute").empty:
        return Metric.missing("bytes", NO_PROGRAMS)
    return None


def hbm_boundary_bytes_per_step(tables: RunTables) -> Metric:
    """Bytes into and out of programs per step: what fusing programs saves.

    Sum over a step's executions of bytes_in + bytes_out of the program, median over timed
    steps. Source: execute events, programs.parquet (from shapes).
    """
    missing = _unless_missing(tables)
    if missing is not None:
        return missing
    boundary = tables.programs["bytes_in"] + tables.programs["bytes_out"]
    unknown = ~tables.timed_events("execute")["program"].isin(boundary.dropna().index)
    if unknown.any():
        return Metric.missing("bytes", f"{unknown.sum():,} executions have no known bytes")
    return Metric(value=_per_step(tables, boundary), unit="bytes", provenance="derived")


def hbm_accessed_bytes_per_step(tables: RunTables) -> Metric:
    """Bytes XLA's cost analysis says its programs touch per step, temporaries included.

    Summed as hbm_boundary_bytes_per_step is. Missing as soon as one executed program has no
    figure (null, -1 or NaN), because a partial sum is not a total. Source: execute events,
    programs.parquet (bytes_accessed).
    """
    missing = _unless_missing(tables)
    if missing is not None:
        return missing
    accessed = tables.programs["bytes_accessed"].astype("float64")
    known = accessed[accessed >= 0]  # drops NaN and the -1 that stands for "no idea"
    executed = tables.timed_events("execute")["program"]
    covered = executed.isin(known.index)
    if not covered.all():
        without = executed[~covered].nunique()
        return Metric.missing(
            "bytes",
            f"XLA gave no figure for {without:,} of {executed.nunique():,} programs; "
            f"known for {covered.mean():.0%} of the executions",
        )
    return Metric(value=_per_step(tables, known), unit="bytes", provenance="derived")


def typical_step(tables: RunTables) -> int | None:
    """The timed step whose duration is closest to the median: the one to look at."""
    if tables.timed.empty:
        return None
    times = durations(tables.timed)
    nearest = int(np.abs(times - np.median(times)).argmin())
    return int(tables.timed["step"].iloc[nearest])


def live_in_step(tables: RunTables, step: int) -> pd.DataFrame:
    """Live bytes from a step's start to its end: columns `t_s` (since the start), `live_bytes`.

    The first row is the level before the step's first event, the last one the level at its end;
    empty if the step has no memory event. Source: memory events.
    """
    events = tables.events("memory")
    events = events[events["step"] == step].sort_values("t_ns", kind="stable")
    if events.empty:
        return pd.DataFrame({"t_s": [], "live_bytes": []})
    row = tables.steps[tables.steps["step"] == step].iloc[0]
    start, end = int(row["t_start_ns"]), int(row["t_end_ns"])
    before = int(events["live_bytes"].iloc[0] - events["delta_bytes"].iloc[0])
    after = int(events["live_bytes"].iloc[-1])
    times = np.concatenate([[start], events["t_ns"].to_numpy(), [end]]) - start
    live = np.concatenate([[before], events["live_bytes"].to_numpy(), [after]])
    return pd.DataFrame({"t_s": times * NS, "live_bytes": live.astype(np.float64)})
