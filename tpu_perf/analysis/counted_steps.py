"""Which steps an analysis counts: steady ones, else those of a capture made under a profiler."""

from __future__ import annotations

from functools import cached_property

import pandas as pd

from tpu_perf.analysis.rung_record import RunTables
from tpu_perf.record.events import EVENT_KINDS
from tpu_perf.record.store import StoredRun

_IMPORTED = "import"  # the engine of runs that were read from captures


def tables_to_analyse(stored: StoredRun) -> tuple[RunTables, str | None]:
    """The tables, and a warning where their steps that count are no steady ones.

    A capture that marks no steps is one step as a whole. Tables without any step that counts are
    those of a run that has nothing to analyse.
    """
    tables = RunTables(stored)
    if not tables.timed.empty:
        return tables, None
    profiled = RunTables(stored, counted="probe")
    if not profiled.timed.empty:
        return profiled, (
            f"no steady step was measured: figures are of {len(profiled.timed):,} steps that ran "
            "under a profiler, which slows them"
        )
    if stored.run.plan.engine == _IMPORTED and tables.steps.empty and tables.event_count:
        return _WholeCapture(stored), (
            "the capture marks no steps: all of it counts as one, compiling included, and it ran "
            "under a profiler"
        )
    return tables, None


class _WholeCapture(RunTables):
    """Tables in which every event lies in step 0, which is the whole capture."""

    def __init__(self, stored: StoredRun) -> None:
        super().__init__(stored, counted="probe")

    def events(self, kind: str) -> pd.DataFrame:
        return super().events(kind).assign(step=0)

    @cached_property
    def steps(self) -> pd.DataFrame:
        begins, ends = [], []
        for kind, spec in EVENT_KINDS.items():
            events = self.events(kind)
            if not events.empty:
                first = spec.columns[0][0]
                begins.append(int(events[first].min()))
                ends.append(int(events["t_end_ns" if "t_end_ns" in events else first].max()))
        row = {
            "step": 0, "phase": "probe", "round": 0, "t_start_ns": min(begins),
            "t_dispatched_ns": max(ends), "t_end_ns": max(ends), "compiles": 0,
            "loss": float("nan"), "grad_norm": float("nan"),
        }  # fmt: skip
        return pd.DataFrame([row])
