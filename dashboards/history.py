"""Page History: one metric over time for each ladder and rung, with commit and environment."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from tpu_perf.analysis import quantities
from tpu_perf.analysis.history import History, HistoryPoint, HistorySeries
from tpu_perf.export.history_chart import chart
from tpu_perf.export.report import rung_tables
from tpu_perf.record.metric import METRIC_UNITS

from . import charts, text
from .choosing import choose
from .directory import Directory
from .listing import metric_history

ANY = "any"
#: Newest runs that the chart shows of a series, and the table of all together.
CHART_POINTS = 500
TABLE_ROWS = 200


def show(directory: Directory) -> None:
    st.title("History")
    what, which, rung = st.columns(3)
    metric = choose(
        what, "Metric", list(METRIC_UNITS), "metric", lambda name: rung_tables.TITLES[name],
        first=True,
    )  # fmt: skip
    found = metric_history(directory, str(metric))
    if not found.series:
        text.message("info", f"There is no finished run under {directory.root} yet.")
        _unreadable(found)
        return
    ladders = sorted({series.ladder for series in found.series})
    ladder = which.selectbox("Ladder", [ANY, *ladders], key="of", bind="query-params")
    rungs = sorted({series.rung for series in found.series})
    of_rung = rung.selectbox("Rung", [ANY, *rungs], key="rung", bind="query-params")
    chosen = tuple(
        series
        for series in found.series
        if ladder in (ANY, series.ladder) and of_rung in (ANY, series.rung)
    )
    if any(series.values for series in chosen):
        newest = [replace(one, points=one.points[-CHART_POINTS:]) for one in chosen]
        charts.show(chart(replace(found, series=tuple(newest))), "")
    else:
        text.message("info", "No run of this choice knows this metric; the table says why.")
    _table(found.metric, chosen)
    _unreadable(found)


def _table(metric: str, chosen: tuple[HistorySeries, ...]) -> None:
    rows = [
        (point, series, before)
        for series in chosen
        for point, before in zip(series.points, [None, *series.points], strict=False)
    ]
    rows.sort(key=lambda row: row[0].started_at or "", reverse=True)
    text.table(
        f"{min(len(rows), TABLE_ROWS):,} of {len(rows):,} runs, newest first",
        ("run", "started (UTC)", rung_tables.TITLES[metric], "against the run before", "commit",
         "environment, and what changed in it"),
        [_row(metric, *row) for row in rows[:TABLE_ROWS]],
        left=2,
        words=(4, 5),
    )  # fmt: skip
    text.provenance_legend()


def _row(
    metric: str, point: HistoryPoint, series: HistorySeries, before: HistoryPoint | None
) -> tuple[object, ...]:
    name = text.link(f"{series.ladder} / {series.rung}", "rung", run=point.path)
    earlier = None if before is None else before.metric.value
    value = point.metric.value
    change = "" if not earlier or value is None else f"{(value / earlier - 1) * 100:+.1f} %"
    changed = "; ".join(f"{what} {a} -> {b}" for what, (a, b) in point.changed.items())
    machine = " · ".join(point.environment.get(name, "") for name in ("device", "cpu"))
    where = text.escaped(machine) + (
        f'<span class="interval">{text.escaped(f"changed: {changed}")}</span>' if changed else ""
    )
    return (
        text.Html(f'{name}<span class="interval">{text.escaped(point.path)}</span>'),
        (point.started_at or "unknown")[:16].replace("T", " "),
        text.number(rung_tables.cell(metric, point.metric)),
        change,
        (point.commit or "unknown")[:10],
        text.Html(where),
    )


def _unreadable(found: History) -> None:
    if found.unreadable:
        st.subheader("Unreadable")
        st.caption(f"{quantities.counted(len(found.unreadable), 'run')} whose run.json is damaged.")
        text.terms(list(found.unreadable.items())[:20])
