"""Section Steps of a rung: how long its steps took, how that varies, and every metric."""

from __future__ import annotations

import numpy as np
import streamlit as st

from tpu_perf.analysis import quantities
from tpu_perf.analysis.rung_record import durations
from tpu_perf.analysis.step_variation import variation
from tpu_perf.export.report import rung_tables, series_charts
from tpu_perf.export.report.figures import COLOURS, TEXT_COLOUR, Figure, layout, time_unit
from tpu_perf.record.metric import METRIC_UNITS, Metric

from . import charts, text
from .loading import OpenRun

MAX_BINS = 60


def show(opened: OpenRun) -> None:
    left, right = st.columns(2)
    with left:
        charts.show(
            distribution(opened),
            "No timed step was free of compiles, so there is no distribution to show.",
        )
    with right:
        charts.show(series_charts.step_series([opened.rung]), "No step was recorded.")
    _outliers(opened)
    rung = opened.rung
    text.table(
        "Every metric",
        ("metric", "value", "note"),
        [
            (
                rung_tables.TITLES[name],
                text.number(rung_tables.cell(name, rung.metric(name))),
                rung.metric(name).reason or "",
            )
            for name in METRIC_UNITS
        ],
        words=(2,),
    )
    text.provenance_legend()


def _outliers(opened: OpenRun) -> None:
    found = variation(opened.tables)
    if found.cv.value is not None:
        st.caption(
            f"Standard deviation over mean {quantities.percent(found.cv.value)} "
            f"(derived) over {found.steps:,} steady steps."
        )
    if found.outliers:
        text.table(
            "Steps far from the median",
            ("step", "took", "of the median", "what else happened"),
            [
                (one.step, quantities.seconds(one.seconds), f"{one.of_median:.2f}x", one.beside)
                for one in found.outliers[:20]
            ],
            words=(3,),
        )


def distribution(opened: OpenRun) -> Figure | None:
    """Steady steps by duration, with the median and its interval."""
    seconds = durations(opened.tables.timed)
    if not len(seconds):
        return None
    factor, unit = time_unit([float(seconds.max())])
    bins = int(np.clip(np.sqrt(len(seconds)) * 2, 8, MAX_BINS))
    counts, edges = np.histogram(factor * seconds, bins=bins)
    median = opened.rung.metric("step_time")
    return Figure(
        id="distribution",
        title="Step time, distribution",
        description=f"{len(seconds):,} fenced, compile-free timed steps by duration, in {unit}. "
        f"{_stated(median)}",
        data=[
            {
                "type": "bar",
                "x": ((edges[:-1] + edges[1:]) / 2).tolist(),
                "y": counts.tolist(),
                "width": np.diff(edges).tolist(),
                "marker": {"color": COLOURS[0], "line": {"width": 0}},
                "hovertemplate": f"%{{x:.4g}} {unit}: %{{y}} steps<extra></extra>",
                "showlegend": False,
            }
        ],
        layout=layout(
            bargap=0.05,
            xaxis={"title": {"text": f"step time ({unit})"}},
            yaxis={"title": {"text": "steps"}},
            shapes=_marks(median, factor),
        ),
        height=330,
    )


def _stated(median: Metric) -> str:
    if median.value is None:
        return f"Their median is not known: {median.reason}."
    bounds = quantities.interval("step_time", median)
    shaded = f"; shaded, its 95 % interval {bounds}" if bounds else ""
    return f"The line is the median, {quantities.text('step_time', median)}{shaded}."


def _marks(median: Metric, factor: float) -> list[dict[str, object]]:
    if median.value is None:
        return []
    at = factor * median.value
    shape = {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper"}
    marks: list[dict[str, object]] = [{**shape, "line": {"color": TEXT_COLOUR, "width": 2}}]
    if median.low is not None and median.high is not None:
        marks.append(
            {"type": "rect", "x0": factor * median.low, "x1": factor * median.high, "y0": 0,
             "y1": 1, "yref": "paper", "fillcolor": COLOURS[1], "opacity": 0.25,
             "line": {"width": 0}, "layer": "below"}
        )  # fmt: skip
    return marks
