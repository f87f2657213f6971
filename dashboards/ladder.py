"""Page Ladder: its rungs side by side, what each is limited by, every metric, the numerics."""

from __future__ import annotations

import json
from pathlib import PurePath

import streamlit as st

from tpu_perf.analysis.model_flops import peak_notes
from tpu_perf.analysis.rung_record import RungRecord
from tpu_perf.errors import StoredRunError
from tpu_perf.export.html import workload_of
from tpu_perf.export.json_document import environment_of
from tpu_perf.export.report import rung_charts, rung_tables, series_charts, sharding_tables
from tpu_perf.export.report.rung_tables import Table

from . import charts, text
from .directory import Directory
from .loading import OpenLadder, ladder_of

SECTIONS = ("Overview", "All metrics", "Numerics", "Programs", "Conditions")
NO_RESULTS = "No rung has been measured to its end, so there is nothing to draw."


def show(directory: Directory) -> None:
    path = st.query_params.get("ladder")
    if path is None:
        st.title("Ladder")
        text.message("info", "Choose a ladder on the page Ladders.")
        return
    try:
        opened = ladder_of(directory, path)
    except StoredRunError as error:
        text.title(PurePath(path).name or "Ladder")
        text.problem(error)
        return
    _head(opened)
    for tab, section in zip(st.tabs(SECTIONS, key="section", bind="query-params"),
                            (_overview, _metrics, _numerics, _programs, _conditions),
                            strict=True):  # fmt: skip
        if tab.open:
            with tab:
                section(opened)


def _head(opened: OpenLadder) -> None:
    ladder, rungs = opened.ladder, list(opened.rungs)
    text.title(ladder.name)
    ended = f"finished {ladder.finished_at}" if ladder.finished_at else "not finished"
    text.note(f"{opened.path} · started {ladder.started_at}, {ended} · baseline {ladder.baseline}")
    workload = workload_of(rungs)
    if workload:
        text.note(workload)
    if ladder.finished_at is None:
        text.message(
            "warning",
            "This ladder was interrupted, or is still running: rungs without figures have no "
            f"result yet. To go on with it: tpu-perf ladder FILE --resume --out "
            f"{opened.path}",
        )
    for warning in ladder.warnings:
        text.message("warning", warning)


def _overview(opened: OpenLadder) -> None:
    rungs = list(opened.rungs)
    if not rungs:
        text.message(
            "info", "This ladder has no rungs: nothing was planned, or it ended before planning."
        )
        return
    text.table(
        "Rungs",
        ("rung", "status", *rung_tables.SUMMARY.values()),
        [
            (
                _rung_link(opened, rung),
                rung.status,
                *(text.number(cell) for cell in rung_tables.summary_row(rung)),
            )
            for rung in rungs
        ],
        left=2,
    )
    text.provenance_legend()
    reasons = [(rung.name, f"{rung.status}: {rung.reason}") for rung in rungs if rung.reason]
    if reasons:
        st.subheader("Without a result")
        text.terms(reasons)
    why = [(rung.name, rung.why) for rung in rungs if rung.why]
    if why:
        st.subheader("Why")
        text.terms(why)
    colours = rung_charts.rung_colours(rungs)
    left, right = st.columns(2)
    with left:
        charts.show(rung_charts.step_time(rungs, colours), NO_RESULTS)
    with right:
        charts.show(rung_charts.mfu(rungs, colours), "No rung has an MFU: its peak or its FLOPs "
                    "are not known.")  # fmt: skip
    charts.show(rung_charts.waterfall(rungs), "A waterfall needs two rungs with a step time.")
    warnings = [(rung.name, warning) for rung in rungs for warning in rung.warnings]
    st.subheader("Warnings")
    if warnings:
        text.terms(warnings)
    else:
        st.write("None.")


def _rung_link(opened: OpenLadder, rung: RungRecord) -> text.Html:
    path = opened.paths[rung.name]
    name = rung.name + (" (baseline)" if rung.name == opened.ladder.baseline else "")
    return text.Html(text.link(name, "rung", run=path) if path else text.escaped(name))


def _metrics(opened: OpenLadder) -> None:
    rungs = list(opened.rungs)
    text.table(
        "Every metric of every rung",
        ("metric", *(rung.name for rung in rungs)),
        [
            (
                text.Html(f'{text.escaped(title)}<span class="interval">{name}</span>'),
                *map(text.number, cells),
            )
            for title, name, cells in rung_tables.all_metrics(rungs)
        ],
    )
    text.provenance_legend()
    notes = peak_notes(rungs)
    if notes:
        text.note("MFU against " + "; ".join(notes))
    table = rung_tables.break_even(rungs, opened.ladder.baseline)
    if table:
        plain_table(table)
    for table in sharding_tables.tables(rungs):
        plain_table(table)


def _numerics(opened: OpenLadder) -> None:
    rungs = list(opened.rungs)
    colours = rung_charts.rung_colours(rungs)
    charts.show(series_charts.losses(rungs, colours), "No rung recorded a loss.")
    table = rung_tables.numerics(rungs)
    if table:
        plain_table(table)
    else:
        text.message("info", "No rung was compared with torch on the CPU.")


def _programs(opened: OpenLadder) -> None:
    rungs = list(opened.rungs)
    shown = [rung_tables.cache(rungs), rung_tables.flushes(rungs), rung_tables.fallbacks(rungs)]
    for table in filter(None, shown):
        plain_table(table)
    if not any(shown):
        text.message("info", "No rung recorded programs: torch on the CPU has none.")
    st.caption("Programs one by one, look-ups and recompiles are on the page of each rung.")


def _conditions(opened: OpenLadder) -> None:
    rungs = list(opened.rungs)
    notes = rung_tables.lane_notes(rungs)
    if notes:
        text.table("How numbers came about", ("rung", "topic", "note"), notes, left=3)
    st.subheader("Environment")
    environment = environment_of(rungs, opened.ladder.baseline)
    st.code(json.dumps(environment, indent=2), language="json")
    st.subheader("Configuration")
    text.note(opened.ladder.config_path or "no file named")
    st.code(json.dumps(dict(opened.ladder.config), indent=2), language="json")


def plain_table(table: Table) -> None:
    """A table of the report."""
    text.table(table.caption, table.head, table.rows, left=table.left)
    if table.note:
        text.note(table.note)
