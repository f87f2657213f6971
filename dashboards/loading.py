"""Opens ladders and runs for the pages, each kept in memory until its files change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import streamlit as st

from tpu_perf.analysis.ladder_metrics import computed
from tpu_perf.analysis.measured_ops import MeasuredOps, measured_ops
from tpu_perf.analysis.memory_peak import MemoryPeak, memory_peak
from tpu_perf.analysis.op_flops.formulas import Attention
from tpu_perf.analysis.op_table import By, OpTable, op_table
from tpu_perf.analysis.roofline import Machine, machine_of
from tpu_perf.analysis.run_details import RunDetails
from tpu_perf.analysis.run_summary import RunSummary
from tpu_perf.analysis.rung_record import RungRecord, RunTables, open_rung
from tpu_perf.analysis.timeline_view import Timeline, timeline
from tpu_perf.errors import StoredRunError
from tpu_perf.record.ladder import Ladder
from tpu_perf.record.metric import METRIC_UNITS
from tpu_perf.record.store import (
    LADDER_FILE,
    PARTIAL_SUFFIX,
    RUN_FILE,
    StoredRun,
    StoredTables,
    load_ladder,
    load_run,
)

from .directory import Directory

ATTENTION: Attention = "causal"
#: Runs kept in memory; one of a million events takes about 100 MB.
KEPT_RUNS = 6
Fingerprint = tuple[tuple[str, int, int], ...]


class OpenRun:
    """A run with everything that its pages ask for, worked out when first asked."""

    def __init__(self, stored: StoredRun) -> None:
        self.stored = stored
        self.summary = RunSummary(stored)
        self.details = RunDetails(stored)
        self.shown: set[str] = set()  # sections that have been worked out
        self._tables_by: dict[By, OpTable] = {}

    @property
    def tables(self) -> RunTables:
        return self.summary.tables

    @property
    def rung(self) -> RungRecord:
        return self.summary.rung

    @cached_property
    def timeline(self) -> Timeline:
        return timeline(self.tables)

    @cached_property
    def measured(self) -> MeasuredOps:
        return measured_ops(self.tables, self.details, ATTENTION)

    @cached_property
    def machine(self) -> Machine:
        return machine_of(self.stored.run.facts, self.stored.run.environment)

    @cached_property
    def memory(self) -> MemoryPeak:
        return memory_peak(self.tables, self.details)

    def op_table(self, by: By) -> OpTable:
        if by not in self._tables_by:
            step_s = self.rung.value("step_time")
            self._tables_by[by] = op_table(
                by, self.tables, self.details, self.measured, step_s, self.machine
            )
        return self._tables_by[by]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLadder:
    """A ladder and its rungs; `paths` are those of the rungs' runs below DIR ("" if outside)."""

    path: str
    ladder: Ladder
    rungs: tuple[RungRecord, ...]
    paths: dict[str, str]


def run_of(directory: Directory, path: str) -> OpenRun:
    """Raises StoredRunError for what is missing, damaged or outside DIR."""
    found = directory.run(path)
    return _run(found, fingerprint(found))


@st.cache_resource(max_entries=KEPT_RUNS, show_spinner=False)
def _run(directory: Path, _changes_with: Fingerprint) -> OpenRun:
    return OpenRun(load_run(directory))


def ladder_of(directory: Directory, path: str) -> OpenLadder:
    """Raises StoredRunError if ladder.json itself cannot be read; rungs say what is wrong."""
    found = directory.ladder(path)
    ladder = load_ladder(found)
    seen: list[tuple[str, int, int]] = [*fingerprint(found)]
    for rung in ladder.rungs:
        if (problem := refused(directory, path, rung.run)) is None:
            run = found / rung.run
            seen += [*fingerprint(run), *fingerprint(run.with_name(run.name + PARTIAL_SUFFIX))]
        else:
            seen.append((problem.message, 0, 0))
    return _ladder(directory.root, path, tuple(seen))


@st.cache_resource(max_entries=3 * KEPT_RUNS, show_spinner=False)
def _ladder(root: Path, path: str, _changes_with: Fingerprint) -> OpenLadder:
    directory = Directory(root)
    found = directory.ladder(path)
    ladder = load_ladder(found)
    rungs, paths = [], {}
    for entry in ladder.rungs:
        problem = refused(directory, path, entry.run)
        if problem is None:
            rungs.append(open_rung(found, entry.name, entry.run))
            paths[entry.name] = directory.below((found / entry.run).resolve())
        else:
            rungs.append(_without_run(found, entry.name, entry.run, problem.message))
            paths[entry.name] = ""
    if any(one.run is not None and not METRIC_UNITS.keys() <= one.run.metrics.keys()
           for one in rungs):  # fmt: skip
        rungs = computed(rungs, ladder.baseline)
    return OpenLadder(path=path, ladder=ladder, rungs=tuple(rungs), paths=paths)


def refused(directory: Directory, ladder: str, run: str) -> StoredRunError | None:
    """Why a rung's run is not read: ladder.json may name any path."""
    try:
        found = directory.resolve(f"{ladder}/{run}" if not run.startswith("/") else run)
        if found.exists():
            directory.run(directory.below(found))
    except StoredRunError as error:
        return error
    return None


def _without_run(ladder: Path, name: str, path: str, reason: str) -> RungRecord:
    return RungRecord(
        name=name, directory=ladder / path, path=path, status="failed", reason=reason, run=None,
        tables=None,
    )  # fmt: skip


def partial_of(directory: Directory, path: str) -> RungRecord | None:
    """What a run that was never finished left: its tables so far; None if there is nothing."""
    name = path if path.endswith(PARTIAL_SUFFIX) else path + PARTIAL_SUFFIX
    found = directory.resolve(name)
    if not found.is_dir():
        return None
    directory.check_tables(found)
    return RungRecord(
        name=found.name.removesuffix(PARTIAL_SUFFIX), directory=found, path=name, status="failed",
        reason="interrupted, or still being measured", run=None,
        tables=RunTables(StoredTables(found)),
    )  # fmt: skip


def ladder_around(directory: Directory, run: str) -> str | None:
    """The path of the ladder that a run lies in, None for a run of its own."""
    for parent in Path(run).parents:
        if (directory.root / parent / LADDER_FILE).is_file():
            return parent.as_posix()
    return None


def fingerprint(directory: Path) -> Fingerprint:
    """Changes when a document or a table of the directory does."""
    out = []
    for name in (LADDER_FILE, RUN_FILE, "steps.parquet", "events"):
        try:
            stat = (directory / name).stat()
        except OSError:
            continue
        out.append((str(directory / name), stat.st_mtime_ns, stat.st_size))
    return tuple(out)
