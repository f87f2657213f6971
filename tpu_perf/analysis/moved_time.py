"""Which ops or modules took more or less host and device time in one run than in another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from tpu_perf.analysis.host_self_time import dispatches
from tpu_perf.analysis.intervals import MIN_FOR_INTERVAL
from tpu_perf.analysis.measured_ops import measured_ops
from tpu_perf.analysis.metric_change import ALPHA, Verdict
from tpu_perf.analysis.op_table import labels
from tpu_perf.analysis.run_details import OUTSIDE, UNKNOWN, RunDetails
from tpu_perf.analysis.rung_record import NS, RunTables

Grouping = Literal["op", "module", "line"]
Lane = Literal["host", "device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Time of one group (an op, a module, a line) in a steady step, in seconds; 0 where a run
    does not have it. `verdict`: worse | better, no difference found, too few samples (device time
    comes from one profile of a few steps, which has no spread)."""

    by: Grouping
    lane: Lane
    label: str
    base_s: float
    new_s: float
    base_calls: float
    new_calls: float
    verdict: Verdict
    p_value: float | None = None

    @property
    def difference_s(self) -> float:
        return self.new_s - self.base_s


def moved_time(
    base: tuple[RunTables, RunDetails], new: tuple[RunTables, RunDetails], by: Iterable[Grouping]
) -> tuple[Moved, ...]:
    """Every group of either run by how much its time moved, most first.

    Host time is that of the group's dispatches without those nested in them, tested over rounds
    with the false discovery rate kept at 5 %. Device time is there where both runs hold device
    events. A grouping that neither run knows anything of (modules, in runs recorded without
    details) is left out.
    """
    found: list[Moved] = []
    events = dispatches(base[0]), dispatches(new[0])
    profiled = all(not tables.events("device").empty for tables, _ in (base, new))
    for grouping in by:
        found += _host(base, new, events, grouping)
        if profiled:
            found += _device(base, new, grouping)
    return tuple(sorted(found, key=lambda moved: -abs(moved.difference_s)))


def _host(
    base: tuple[RunTables, RunDetails],
    new: tuple[RunTables, RunDetails],
    events: tuple[pd.DataFrame, pd.DataFrame],
    by: Grouping,
) -> list[Moved]:
    before, calls_before = _by_round(*base, events[0], by)
    after, calls_after = _by_round(*new, events[1], by)
    every = before.columns.union(after.columns)
    if not set(every) - {UNKNOWN, OUTSIDE}:
        return []
    before, after = (frame.reindex(columns=every, fill_value=0.0) for frame in (before, after))
    p_values = _p_values(before.to_numpy(), after.to_numpy())
    return [
        Moved(
            by=by, lane="host", label=str(label),
            base_s=float(before[label].median()), new_s=float(after[label].median()),
            base_calls=float(calls_before.get(label, 0.0)),
            new_calls=float(calls_after.get(label, 0.0)),
            verdict=_verdict(p, float(after[label].median() - before[label].median())),
            p_value=p,
        )
        for label, p in zip(every, p_values, strict=True)
    ]  # fmt: skip


def _by_round(
    tables: RunTables, details: RunDetails, events: pd.DataFrame, by: Grouping
) -> tuple[pd.DataFrame, pd.Series[float]]:
    """Host seconds a step of each group, one row a round; and its calls a step."""
    steps = tables.timed[["step", "round"]]
    per_round = steps.groupby("round").size()
    rounds = per_round.index
    if events.empty:
        return pd.DataFrame(index=rounds), pd.Series(dtype="float64")
    of_step = events["step"].map(steps.set_index("step")["round"])
    label = labels(by, events, tables, details)
    groups = events["self_ns"].groupby([of_step.rename("round"), label])
    sums = groups.sum().unstack(fill_value=0).reindex(rounds, fill_value=0)
    calls = groups.size().groupby(level=1).sum() / len(steps)
    return sums.div(per_round, axis=0) * NS, calls.astype("float64")


def _p_values(base: np.ndarray, new: np.ndarray) -> list[float | None]:
    """Mann-Whitney over rounds for every column, Benjamini-Hochberg adjusted."""
    from scipy.stats import false_discovery_control, mannwhitneyu

    if min(len(base), len(new)) < MIN_FOR_INTERVAL or not base.shape[1]:
        return [None] * base.shape[1]
    raw = mannwhitneyu(new, base, axis=0).pvalue
    return [float(p) for p in false_discovery_control(np.nan_to_num(raw, nan=1.0))]


def _verdict(p_value: float | None, difference: float) -> Verdict:
    if p_value is None:
        return "too few samples"
    if p_value >= ALPHA or difference == 0:
        return "no difference found"
    return "worse" if difference > 0 else "better"


def _device(
    base: tuple[RunTables, RunDetails], new: tuple[RunTables, RunDetails], by: Grouping
) -> list[Moved]:
    sides = []
    for tables, details in (base, new):
        measured = measured_ops(tables, details, "causal")
        groups = measured.rows.groupby(labels(by, measured.rows, tables, details).to_numpy())
        sides.append(groups[["device_ns", "per_step"]].sum())
    every = sides[0].index.union(sides[1].index)
    if not set(every) - {UNKNOWN, OUTSIDE}:
        return []
    before, after = (side.reindex(every, fill_value=0.0) for side in sides)
    return [
        Moved(
            by=by, lane="device", label=str(label),
            base_s=float(before["device_ns"][label]) * NS,
            new_s=float(after["device_ns"][label]) * NS,
            base_calls=float(before["per_step"][label]),
            new_calls=float(after["per_step"][label]),
            verdict="too few samples",
        )
        for label in every
    ]  # fmt: skip
