"""Section Timeline of a rung: what host and device did when, as fine as the stretch allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from tpu_perf.analysis import quantities
from tpu_perf.analysis.device_memory import typical_step
from tpu_perf.analysis.op_category import category_of
from tpu_perf.analysis.run_details import records
from tpu_perf.analysis.timeline_view import LaneView, Timeline
from tpu_perf.export.report.figures import COLOURS, GREY, Figure, layout, shown, time_unit

from . import charts, text
from .loading import OpenRun

#: Boxes a lane: more than a screen has room for would only be slower.
COLUMNS = 400
TOP = 15
OPS = ("dispatch", "fallback")
ALL_OTHERS = "other ops"
KIND_COLOURS = {
    "steps": GREY,
    "annotation": "#56B4E9",
    "flush": "#F0E442",
    "execute": "#AA4499",
    "compile": "#D55E00",
    "transfer": "#CC79A7",
    "sync": "#999933",
    "device": "#009E73",
}
#: Categories of ops that have a colour of their own; every other is ALL_OTHERS.
CATEGORY_COLOURS = {
    "matmul": COLOURS[0],
    "attention": COLOURS[5],
    "elementwise": COLOURS[1],
    "normalization": COLOURS[2],
    "softmax and loss": COLOURS[3],
    "optimizer": COLOURS[4],
    "view": "#BBBBBB",
    ALL_OTHERS: GREY,
}
CONFIG = {**charts.CONFIG, "modeBarButtons": [["toImage"]]}


def show(opened: OpenRun) -> None:
    line = opened.timeline
    if not line.lanes:
        text.message(
            "info", "This run recorded no events: torch on the CPU, or a run without a recorder."
        )
        return
    begin, end = stretch(opened)
    _controls(opened, begin, end)
    views = line.view(begin, end, COLUMNS)
    figure = timeline_figure(line, views, begin, end)
    hidden = [view for view in views if not view.exact]
    text.note(figure.description)
    picked = charts.draw(
        figure,
        key=f"timeline-{begin}-{end}",
        on_select="rerun",
        selection_mode="box",
        config=CONFIG,
    )
    _zoom_into(picked, line, begin, end)
    if hidden:
        counts = ", ".join(f"{view.spans:,} {view.name}" for view in hidden)
        text.note(
            f"Too many to draw one by one: {counts}. Each box then stands for a slice of "
            f"{quantities.seconds((end - begin) * 1e-9 / COLUMNS)}: its colour and name are "
            "what takes most of it, its height how much of it is covered."
        )
    _longest(opened, begin, end)


def stretch(opened: OpenRun) -> tuple[int, int]:
    """What the URL asks for (`from` and `to`, in ms since the first event), else one typical
    step; always inside the run."""
    line = opened.timeline
    try:
        begin = line.begin_ns + round(float(st.query_params["from"]) * 1e6)
        end = line.begin_ns + round(float(st.query_params["to"]) * 1e6)
    except (KeyError, ValueError, OverflowError):
        begin, end = _step(opened, typical_step(opened.tables))
    begin = min(max(begin, line.begin_ns), line.end_ns - 1)
    return begin, max(begin + 1, min(end, line.end_ns))


def _step(opened: OpenRun, step: int | None) -> tuple[int, int]:
    steps = opened.tables.steps
    chosen = steps[steps["step"] == step]
    if chosen.empty:
        return opened.timeline.begin_ns, opened.timeline.end_ns
    return int(chosen["t_start_ns"].iloc[0]), int(chosen["t_end_ns"].iloc[0])


def _go(line: Timeline, begin: float, end: float) -> None:
    """Show another stretch, and have the URL say so."""
    st.query_params["from"] = f"{(begin - line.begin_ns) / 1e6:.6f}"
    st.query_params["to"] = f"{(end - line.begin_ns) / 1e6:.6f}"


def _controls(opened: OpenRun, begin: int, end: int) -> None:
    line, width = opened.timeline, end - begin
    middle = (begin + end) / 2
    moves = {
        "Earlier": (":material/chevron_left:", begin - 0.75 * width, end - 0.75 * width),
        "Later": (":material/chevron_right:", begin + 0.75 * width, end + 0.75 * width),
        "Zoom in": (":material/zoom_in:", middle - width / 6, middle + width / 6),
        "Zoom out": (":material/zoom_out:", begin - width, end + width),
        "Whole run": (":material/fit_width:", line.begin_ns, line.end_ns),
        "Typical step": (":material/target:", *_step(opened, typical_step(opened.tables))),
    }
    with st.container(horizontal=True, vertical_alignment="bottom"):
        for label, (icon, low, high) in moves.items():
            low, high = max(low, line.begin_ns), min(high, line.end_ns)
            st.button(label, icon=icon, on_click=_go, args=(line, low, high),
                      disabled=high - low < 1)  # fmt: skip
        steps = opened.tables.steps
        if not steps.empty:
            first, last = int(steps["step"].min()), int(steps["step"].max())
            st.number_input(
                f"Step ({first} to {last})", first, last, value=None, key="go-to-step", width=160,
                placeholder="go to", on_change=_go_to_step, args=(opened,),
            )  # fmt: skip
    factor, unit = time_unit([(end - line.begin_ns) * 1e-9])
    low, high = ((moment - line.begin_ns) * 1e-9 * factor for moment in (begin, end))
    st.write(
        f"**{quantities.seconds(width * 1e-9)}** from {low:,.6g} to {high:,.6g} {unit} "
        "since the first event. Drag across the chart to zoom in."
    )


def _go_to_step(opened: OpenRun) -> None:
    step = st.session_state.get("go-to-step")
    if step is not None:
        _go(opened.timeline, *_step(opened, int(step)))


def _zoom_into(picked: Any, line: Timeline, begin: int, end: int) -> None:
    boxes = picked["selection"]["box"] if picked else []
    if not boxes:
        return
    factor, _ = time_unit([(end - begin) * 1e-9])
    low, high = sorted(float(x) / factor * 1e9 + begin for x in boxes[0]["x"][:2])
    if high - low >= 1:
        _go(line, low, high)
        st.rerun()


def timeline_figure(line: Timeline, views: Sequence[LaneView], begin: int, end: int) -> Figure:
    """Lanes above one another; a box is an event or a slice, see `timeline_view`."""
    factor, unit = time_unit([(end - begin) * 1e-9])
    boxes = pd.concat([view.boxes.assign(lane=view.name, kind=view.kind) for view in views])
    boxes["colour"] = [
        category if kind in OPS else kind
        for kind, category in zip(boxes["kind"], map(_category, boxes["label"]), strict=True)
    ]
    low, high = boxes["start_ns"].clip(lower=begin), boxes["end_ns"].clip(upper=end)
    boxes["base"] = (low - begin) * 1e-9 * factor
    boxes["x"] = (high - low).clip(lower=0) * 1e-9 * factor
    boxes["thick"] = 0.86 * boxes["busy"].clip(lower=0.12)
    names = [shown(view.name) for view in views]
    return Figure(
        id="timeline",
        title="Timeline",
        description="Host lanes first, then the device's; ops by category. Nested events are drawn "
        "over those that hold them.",
        data=[
            _trace(colour, part, begin, unit, factor)
            for colour, part in boxes.groupby("colour", sort=False)
        ],
        layout=layout(
            barmode="overlay",
            bargap=0,
            dragmode="select",
            selectdirection="h",
            hovermode="closest",
            xaxis={"title": {"text": f"time in this stretch ({unit})"},
                   "range": [0, (end - begin) * 1e-9 * factor], "fixedrange": True},
            yaxis={"type": "category", "categoryorder": "array", "categoryarray": names[::-1],
                   "fixedrange": True, "automargin": True, "range": [-0.5, len(names) - 0.5]},
            legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0,
                    "itemclick": False, "itemdoubleclick": False},
            newselection={"line": {"width": 1}},
            margin={"l": 70, "r": 24, "t": 60, "b": 56},
        ),
        height=150 + 46 * len(names),
    )  # fmt: skip


def _category(label: str) -> str:
    category = category_of(label)
    return category if category in CATEGORY_COLOURS else ALL_OTHERS


def _trace(
    colour: object, boxes: pd.DataFrame, begin: int, unit: str, factor: float
) -> dict[str, Any]:
    kind = str(colour)
    seconds = (boxes["end_ns"] - boxes["start_ns"]) * 1e-9
    words = [
        f"{shown(label)}<br>{quantities.seconds(duration)}"
        if events == 1
        else f"{events:,} events in {quantities.seconds(duration)}, {busy:.0%} covered<br>"
        f"most: {shown(label)}"
        for label, duration, events, busy in zip(
            boxes["label"].str.slice(0, 200), seconds, boxes["events"], boxes["busy"], strict=True
        )
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": {"execute": "enqueue", "annotation": "modules"}.get(kind, kind),
        "y": [shown(lane) for lane in boxes["lane"]],
        "base": boxes["base"].round(9).tolist(),
        "x": boxes["x"].round(9).tolist(),
        "width": boxes["thick"].round(3).tolist(),
        "marker": {
            "color": CATEGORY_COLOURS.get(kind, KIND_COLOURS.get(kind, GREY)),
            "line": {"width": 0},
        },
        "customdata": words,
        "hovertemplate": "%{customdata}<extra>%{y}</extra>",
        "showlegend": kind in CATEGORY_COLOURS,  # a lane's name says what the others are
        "selected": {"marker": {"opacity": 1}},
        "unselected": {"marker": {"opacity": 1}},
    }


def _longest(opened: OpenRun, begin: int, end: int) -> None:
    """The same in words: what took the time of this stretch, with the lines it came from."""
    kinds = {view.kind: view.name for view in opened.timeline.lanes if view.kind != "steps"}
    if not kinds:
        return
    names = {"dispatch": "ops", "device": "device", **kinds}
    kind = st.selectbox(
        "What took the time here", list(kinds), format_func=lambda one: names[one].split(":")[0]
    )
    rows = opened.timeline.longest(begin, end, kind)
    if rows.empty:
        st.write("Nothing of this kind lies in the stretch.")
        return
    width = end - begin
    text.table(
        f"Longest of {len(rows):,} in this stretch (measured; nested ops count in both)",
        ("what", "source line", "events", "time", "of the stretch"),
        [
            (
                row.label,
                "" if (site := opened.details.site(int(row.site))) is None else site.line_label,
                f"{int(row.events):,}",
                quantities.seconds(float(row.total_ns) * 1e-9),
                quantities.percent(float(row.total_ns) / width),
            )
            for row in records(rows.head(TOP))
        ],
        left=2,
    )
