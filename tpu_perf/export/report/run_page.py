"""What the page of one run shows: its sections, each with charts and tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tpu_perf.analysis.op_table import By
from tpu_perf.analysis.run_analysis import RunAnalysis, analyse
from tpu_perf.analysis.run_details import RunDetails
from tpu_perf.analysis.run_summary import RunSummary
from tpu_perf.errors import StoredRunError
from tpu_perf.export.analysis_terminal import TITLES
from tpu_perf.export.report import run_tables, rung_charts, rung_tables, series_charts
from tpu_perf.export.report.figures import Figure
from tpu_perf.export.report.rung_tables import Table
from tpu_perf.export.report.step_timeline import step_timeline
from tpu_perf.record.metric import METRIC_UNITS
from tpu_perf.record.store import StoredRun

GROUPINGS: tuple[By, ...] = ("op", "module", "line", "category", "phase", "program")
SECTIONS = {
    "summary": "Summary",
    "timeline-section": "Timeline of a step",
    "work": "Where time, FLOPs and bytes go",
    "idle": "Idle time and waits",
    "memory-section": "Memory",
    "programs": "Programs and cache",
    "steps": "Every step",
    "notes": "Notes, environment and plan",
}
#: Sections whose tables are of steady steps: without any, the page says why they are missing.
NEEDS_STEADY = ("summary", "work", "idle", "memory-section")


@dataclass
class Section:
    charts: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def add(self, *shown: Figure | Table | None) -> None:
        for one in shown:
            if isinstance(one, Table):
                self.tables.append(one)
            elif one is not None:
                self.charts.append(one)


class RunPage:
    """`sections` by id; `analysis` is None, with the reason, for a run without steady steps."""

    def __init__(self, stored: StoredRun) -> None:
        self.stored = stored
        self.summary = RunSummary(stored)
        self.analysis: RunAnalysis | None = None
        self.not_analysed = ""
        try:
            self.analysis = analyse(stored, GROUPINGS[0], "causal", GROUPINGS[1:])
        except StoredRunError as error:
            self.not_analysed = error.message
        self.sections = {name: Section() for name in SECTIONS}
        self._of_the_run()
        if self.analysis is not None:
            self._of_steady_steps(self.analysis)

    def _of_the_run(self) -> None:
        tables, rung, add = self.summary.tables, self.summary.rung, self._add
        add("timeline-section", step_timeline(tables, RunDetails(self.stored)))
        metrics = {rung_tables.TITLES[name]: rung.metric(name) for name in METRIC_UNITS}
        add("summary", run_tables.figures("Metrics of the run", metrics))
        colours = rung_charts.rung_colours([rung])
        add("memory-section", series_charts.memory([rung], colours))
        add("programs", run_tables.cache(tables))
        add("steps", series_charts.step_series([rung]), series_charts.losses([rung], colours))
        if not self.summary.steps.empty:
            add("steps", run_tables.steps(self.summary))

    def _of_steady_steps(self, found: RunAnalysis) -> None:
        named = {TITLES[name]: metric for name, metric in found.step.items()}
        count = found.variation.steps
        summary = run_tables.figures(f"A step, of {count:,} that count", named)
        self.sections["summary"].tables.insert(0, summary)
        self._add("work", rung_charts.where_time_goes([self.summary.rung]))
        for table in (found.table, *found.more.values()):
            self._add("work", run_tables.of_ops(table))
        self._add("work", run_tables.traffic(found))
        self._add("idle", *(make(found) for make in (run_tables.idle, run_tables.gaps,
                                                    run_tables.syncs)))  # fmt: skip
        self._add("memory-section", *(make(found) for make in (
            run_tables.memory_figures, run_tables.memory_groups,
            run_tables.memory_lines)))  # fmt: skip
        self._add("programs", run_tables.recompiles(found))
        self._add("programs", rung_tables.programs_of(self.summary.rung))
        self._add("idle", rung_tables.flushes([self.summary.rung]))
        self._add("idle", rung_tables.fallbacks([self.summary.rung]))

    def _add(self, section: str, *shown: Figure | Table | None) -> None:
        self.sections[section].add(*shown)

    @property
    def tables(self) -> list[Table]:
        """Every table in the order of the page."""
        return [table for section in self.sections.values() for table in section.tables]

    @property
    def figure_data(self) -> dict[str, dict[str, Any]]:
        """What plotly is given, by the id of the chart."""
        charts = [chart for section in self.sections.values() for chart in section.charts]
        return {chart.id: {"data": chart.data, "layout": chart.layout} for chart in charts}

    def content(self) -> dict[str, Any]:
        """Everything that the template shows."""
        run = self.stored.run
        environment = None if run.environment is None else run.environment.to_json()
        charts = {chart.id: chart for part in self.sections.values() for chart in part.charts}
        return {
            "run": run,
            "plan": run.plan,
            "directory": str(self.stored.directory),
            "workload": _workload(self.summary),
            "environment": environment,
            "sections": list(SECTIONS.items()),
            "needs_steady": NEEDS_STEADY,
            "not_analysed": self.not_analysed,
            "warnings": self._warnings(),
            "charts_of": {
                name: [chart.id for chart in part.charts] for name, part in self.sections.items()
            },
            "tables_of": {name: part.tables for name, part in self.sections.items()},
            "figures": charts,
            "figure_data": self.figure_data,
            "notes": self._notes(),
            "environment_text": json.dumps(environment, indent=2),
            "plan_text": json.dumps(run.plan.to_json(), indent=2),
        }

    def _warnings(self) -> list[str]:
        more: Sequence[str] = () if self.analysis is None else self.analysis.warnings
        return list(dict.fromkeys([*self.stored.run.warnings, *more]))

    def _notes(self) -> list[str]:
        notes = [f"{topic}: {text}" for _, topic, text in rung_tables.lane_notes(
            [self.summary.rung])]  # fmt: skip
        return [*notes, *(() if self.analysis is None else self.analysis.notes)]


def _workload(summary: RunSummary) -> str | None:
    from tpu_perf.export.html import workload_of

    return workload_of([summary.rung])
