"""Exporter `html`: report.html, one self-contained file that works offline."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tpu_perf.analysis import quantities
from tpu_perf.analysis.engine_comparison import pairs
from tpu_perf.analysis.ladder_metrics import completed
from tpu_perf.analysis.model_flops import peak_notes
from tpu_perf.analysis.rung_record import RungRecord
from tpu_perf.export.interface import EXPORTERS, Exporter
from tpu_perf.export.json_document import environment_of
from tpu_perf.export.report import (
    engine_tables,
    rung_charts,
    rung_tables,
    series_charts,
    sharding_tables,
)
from tpu_perf.export.report.figures import Figure
from tpu_perf.record.ladder import Ladder

FILE_NAME = "report.html"


def write(directory: Path, out: Path | None = None) -> Path:
    """Write report.html into the ladder, or into the directory `out`. A reader sees the old file or
    the new one, never half of it."""
    path = (out or directory) / FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{FILE_NAME}.{os.getpid()}.tmp")
    temporary.write_text(page(directory), encoding="utf-8")
    os.replace(temporary, path)
    return path


def page(directory: Path) -> str:
    """The whole report as HTML. Everything the user named is escaped by the template."""
    return render("page.html.j2", context(*completed(directory)))


def render(template: str, content: Mapping[str, Any]) -> str:
    """A page of the templates beside the report's tables and charts, with plotly inside."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    templates = Environment(
        loader=PackageLoader("tpu_perf.export.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template(template).render(plotly_js=get_plotlyjs(), **content)


def context(ladder: Ladder, rungs: list[RungRecord]) -> dict[str, Any]:
    """Everything the template shows, from the stored ladder."""
    engines = pairs(rungs)
    figures = charts(rungs)
    environment = environment_of(rungs, ladder.baseline)
    return {
        "ladder": ladder,
        "rungs": rungs,
        "workload": workload_of(rungs),
        "environment": environment,
        "summary_titles": list(rung_tables.SUMMARY.values()),
        "summary": [(rung, rung_tables.summary_row(rung)) for rung in rungs],
        "all_metrics": rung_tables.all_metrics(rungs),
        "peaks": peak_notes(rungs),
        "figures": {figure.id: figure for figure in figures},
        "figure_data": {
            figure.id: {"data": figure.data, "layout": figure.layout} for figure in figures
        },
        "cache": rung_tables.cache(rungs),
        "programs": [t for rung in rungs if (t := rung_tables.programs_of(rung)) is not None],
        "flushes": rung_tables.flushes(rungs),
        "fallbacks": rung_tables.fallbacks(rungs),
        "break_even": rung_tables.break_even(rungs, ladder.baseline),
        "numerics": rung_tables.numerics(rungs),
        "sharding": sharding_tables.tables(rungs),
        "engines": engine_tables.comparison(engines),
        "cuts": engine_tables.cut_tables(engines),
        "notes": rung_tables.lane_notes(rungs),
        "plans": [(rung.name, plan) for rung in rungs if (plan := rung_tables.plan_of(rung))],
        "environment_text": json.dumps(environment, indent=2),
        "config": json.dumps(dict(ladder.config), indent=2),
    }


def charts(rungs: list[RungRecord]) -> list[Figure]:
    """The charts for which there is data."""
    colours = rung_charts.rung_colours(rungs)
    made = (
        rung_charts.step_time(rungs, colours),
        rung_charts.mfu(rungs, colours),
        rung_charts.waterfall(rungs),
        rung_charts.where_time_goes(rungs),
        series_charts.losses(rungs, colours),
        series_charts.memory(rungs, colours),
        series_charts.step_series(rungs),
        engine_tables.step_cuts(pairs(rungs)),
    )
    return [figure for figure in made if figure is not None]


def workload_of(rungs: list[RungRecord]) -> str | None:
    """The workload and optimizer in one line, from the rung that knows most about them."""
    planned = [rung for rung in rungs if rung.run is not None]
    if not planned:
        return None
    rung = max(planned, key=lambda rung: rung.facts.parameters or 0)
    assert rung.run is not None
    plan, facts = rung.run.plan, rung.facts
    parts = [f"{plan.workload.kind}: {', '.join(named(plan.workload.params))}"]
    if facts.parameters:
        parts.append(quantities.scaled(facts.parameters, "parameters"))
    if facts.tokens_per_step:
        parts.append(f"{facts.tokens_per_step:,} tokens a step")
    parts.append(f"{plan.optimizer.name} ({plan.optimizer.implementation})")
    return "; ".join([*parts, plan.precision])


def named(params: Mapping[str, Any]) -> Iterator[str]:
    """`name value` for every parameter that is set, those of nested mappings included."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from named(value)
        elif value is not None:
            yield f"{name} {value}"


EXPORTERS.add("html", Exporter(name="html", summary="charts and tables, offline", write=write))
