"""What a ladder directory holds about one rung: its run, or why there is none, and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from tpu_perf.analysis.intervals import Samples
from tpu_perf.analysis.op_places import COMPARED, with_places
from tpu_perf.errors import StoredRunError
from tpu_perf.record.events import EVENT_KINDS
from tpu_perf.record.ladder import Ladder
from tpu_perf.record.metric import METRIC_UNITS, Metric
from tpu_perf.record.run import Facts, Run
from tpu_perf.record.store import (
    LADDER_FILE,
    PARTIAL_SUFFIX,
    RUN_FILE,
    StoredRun,
    StoredTables,
    load_ladder,
    load_run,
)

NS = 1e-9  # one nanosecond in seconds


class RunTables:
    """The tables of a run, each read at most once. `counted` is the phase of the steps that
    count."""

    def __init__(self, stored: StoredTables, counted: str = "timed") -> None:
        self._stored = stored
        self._counted = counted
        self._events: dict[str, pd.DataFrame] = {}
        self._timed_events: dict[str, pd.DataFrame] = {}
        self._details: dict[str, pd.DataFrame] = {}

    def events(self, kind: str) -> pd.DataFrame:
        """Events of one kind; those recorded without places have them from steps that have."""
        if kind not in self._events:
            events = self._stored.events(kind)
            self._events[kind] = with_places(kind, events) if kind in COMPARED else events
        return self._events[kind]

    def detail(self, name: str) -> pd.DataFrame:
        """A table of `record.details`; empty where the run has none."""
        if name not in self._details:
            self._details[name] = self._stored.detail(name)
        return self._details[name]

    def read_all(self) -> None:
        """Read every table now. Raises StoredRunError if one is damaged."""
        _ = self.steps, self.programs
        for kind in EVENT_KINDS:
            self.events(kind)

    @cached_property
    def steps(self) -> pd.DataFrame:
        return self._stored.steps()

    @cached_property
    def programs(self) -> pd.DataFrame:
        """The program table indexed by program number."""
        return self._stored.programs().drop_duplicates("program", keep="last").set_index("program")

    def phase(self, *names: str, clean: bool = False) -> pd.DataFrame:
        """Steps of these phases; `clean` leaves out those in which a program was compiled."""
        rows = self.steps[self.steps["phase"].isin(list(names))]
        return rows[rows["compiles"] == 0] if clean else rows

    @cached_property
    def timed(self) -> pd.DataFrame:
        """The steps that count: timed, and free of compiles."""
        return self.phase(self._counted, clean=True)

    @cached_property
    def recorded(self) -> RunTables:
        """These tables with the steps that count being those whose events were recorded: for
        engines that record only steps of their own (phase `trace`), since it slows the others."""
        if self._counted != "timed" or not self.timed_events("execute").empty:
            return self
        traced = RunTables(self._stored, counted="trace")
        return self if traced.timed_events("execute").empty else traced

    def timed_events(self, kind: str) -> pd.DataFrame:
        """Events of the steps that count."""
        if kind not in self._timed_events:
            events = self.events(kind)
            self._timed_events[kind] = events[events["step"].isin(self.timed["step"])]
        return self._timed_events[kind]

    @property
    def has_programs(self) -> bool:
        """Whether this engine records the programs it executes (torch on the CPU does not)."""
        return not self.events("execute").empty

    @property
    def event_count(self) -> int:
        return sum(len(self.events(kind)) for kind in EVENT_KINDS)


def durations(steps: pd.DataFrame, until: str = "t_end_ns") -> Samples:
    """Step durations in seconds, from the step's start until the given column."""
    nanoseconds = (steps[until] - steps["t_start_ns"]).to_numpy(dtype=np.float64)
    return np.asarray(nanoseconds * NS, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRecord:
    """One row of a ladder. `run` is None where the directory is missing or unreadable."""

    name: str
    directory: Path
    path: str  # relative to the ladder directory
    status: str
    reason: str | None
    run: Run | None
    tables: RunTables | None

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def measured(self) -> RunTables:
        """The tables of a rung that has a run directory; asking others is a mistake of ours."""
        if self.tables is None:
            raise ValueError(f"{self.name} has no run directory")
        return self.tables

    @property
    def facts(self) -> Facts:
        return Facts() if self.run is None else self.run.facts

    @property
    def why(self) -> str | None:
        return None if self.run is None else self.run.why

    @property
    def warnings(self) -> tuple[str, ...]:
        return () if self.run is None else self.run.warnings

    @property
    def missing_because(self) -> str:
        """The reason that a rung without measurements gives for each metric."""
        return f"{self.status}: {self.reason}" if self.reason else self.status

    def metric(self, name: str) -> Metric:
        stored: Mapping[str, Metric] = {} if self.run is None else self.run.metrics
        if name in stored:
            return stored[name]
        reason = "not computed" if self.ok else self.missing_because
        return Metric.missing(METRIC_UNITS[name], reason)

    def value(self, name: str) -> float | None:
        return self.metric(name).value

    def with_run(self, run: Run) -> RungRecord:
        return replace(self, run=run)


def open_rung(ladder_directory: Path, name: str, path: str) -> RungRecord:
    """Open one rung; a missing or damaged run becomes a record that says so."""
    directory = ladder_directory / path
    if not directory.exists():
        begun = directory.with_name(directory.name + PARTIAL_SUFFIX).exists()
        reason = (
            "interrupted while it was being measured"
            if begun
            else "not run: the ladder ended before this rung left a run directory"
        )
        status = "failed" if begun else "skipped"
        return _without_run(name, directory, path, status, reason)
    try:
        stored = load_run(directory)
    except StoredRunError as error:
        return _without_run(name, directory, path, "failed", error.message)
    return RungRecord(
        name=name,
        directory=directory,
        path=path,
        status=stored.run.status,
        reason=stored.run.reason,
        run=stored.run,
        tables=RunTables(stored),
    )


def _without_run(name: str, directory: Path, path: str, status: str, reason: str) -> RungRecord:
    return RungRecord(
        name=name,
        directory=directory,
        path=path,
        status=status,
        reason=reason,
        run=None,
        tables=None,
    )


def open_rungs(directory: Path) -> tuple[Ladder, list[RungRecord]]:
    """Open a ladder directory. Raises StoredRunError only if ladder.json itself is unreadable."""
    ladder = load_ladder(directory)
    return ladder, [open_rung(directory, rung.name, rung.run) for rung in ladder.rungs]


def stored_run(directory: Path, rung: str | None = None) -> StoredRun:
    """The run in a run directory, or the named rung's of a ladder directory.

    Raises StoredRunError where a ladder is given without a rung, or a rung that it does not have.
    """
    if not (directory / LADDER_FILE).exists():
        if rung is not None and (directory / RUN_FILE).exists():
            raise StoredRunError(
                f"{directory} is a run, not a ladder, and has no rungs", hint="leave --rung out"
            )
        return load_run(directory)
    ladder = load_ladder(directory)
    paths = {entry.name: entry.run for entry in ladder.rungs}
    if rung not in paths:
        problem = (
            f"ladder {ladder.name} has several rungs"
            if rung is None
            else (f"ladder {ladder.name} has no rung {rung!r}")
        )
        raise StoredRunError(problem, hint=f"choose one with --rung: {', '.join(paths)}")
    return load_run(directory / paths[rung])
