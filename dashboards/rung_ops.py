"""Section Modules and ops of a rung: an icicle of its modules, tables, and the lines of one op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pandas as pd
import streamlit as st

from tpu_perf.analysis import quantities
from tpu_perf.analysis.module_tree import ROOT, Node, device_rows, host_rows, module_tree
from tpu_perf.analysis.op_category import category_of
from tpu_perf.analysis.op_flops.call import base_name
from tpu_perf.analysis.op_table import GROUPINGS, MEASURES, WHAT, By, OpTable
from tpu_perf.analysis.run_details import UNKNOWN
from tpu_perf.export.report.figures import COLOURS, GREY, Figure, layout, shown
from tpu_perf.export.report.rung_tables import Cell

from . import charts, text
from .loading import OpenRun
from .rung_timeline import ALL_OTHERS, CATEGORY_COLOURS

#: Nodes that an icicle shows; of more, the smallest ops are summed up in their module.
MAX_NODES = 1_500
TOP_ROWS = 25
HOST, DEVICE = "host time", "device time"
TABLE_MEASURES = (
    "calls", "runs", "host_time", "device_time", "share", "hardware_flops", "boundary_bytes",
    "accessed_bytes", "intensity", "roofline",
)  # fmt: skip
NO_STEPS = "No timed step was free of compiles, so there is no steady step to take apart."


def show(opened: OpenRun) -> None:
    if opened.tables.timed.empty:
        text.message("info", NO_STEPS)
        return
    rows = {HOST: host_rows(opened.tables)}
    device = device_rows(opened.measured)
    if device is not None:
        rows = {DEVICE: device, **rows}
    rows = {name: found for name, found in rows.items() if not found.empty}
    if not rows:
        text.message("info", "No op was recorded in a steady step: torch on the CPU records none.")
        return
    chosen = next(iter(rows))
    if len(rows) > 1:
        chosen = st.segmented_control(
            "Time", list(rows), default=chosen, key="time", bind="query-params", required=True
        )
    _icicle(opened, rows[chosen], chosen)
    _table(opened)
    _lines(opened, rows[chosen], chosen)


def _icicle(opened: OpenRun, rows: pd.DataFrame, what: str) -> None:
    nodes = module_tree(rows, opened.details)
    charts.show(icicle(nodes, what), "No op took any time.")
    if not opened.details.sites:
        text.message(
            "info",
            "This run was recorded without details: which module and line an op came from is not "
            "known.",
        )
    if what == HOST and opened.measured.device is None:
        st.caption("Device time by op is not known: XLA's profiler ran in no step of this run.")


def icicle(nodes: Sequence[Node], what: str) -> Figure | None:
    """Modules as plotly's icicle, from the root on the left; a click opens a module."""
    kept = _largest(nodes)
    total = sum(node.own_s for node in kept)
    if not total:
        return None
    return Figure(
        id="icicle",
        title=f"{what.capitalize()} by module",
        description=f"{quantities.seconds(total)} of {what} in a steady step "
        f"({'measured' if what == HOST else 'derived from profiled steps'}), by module and, "
        "within a module, by the ops it calls itself. Click a module to open it.",
        data=[
            {
                "type": "icicle",
                "ids": [node.id for node in kept],
                "parents": [node.parent for node in kept],
                "labels": [shown(node.label) for node in kept],
                "values": [node.own_s * 1e3 for node in kept],
                "branchvalues": "remainder",
                "marker": {
                    "colors": [_colour(node) for node in kept],
                    "line": {"width": 1, "color": "rgba(128,128,128,0.7)"},
                },
                "texttemplate": "%{label} %{percentRoot:.1%}",
                "hovertemplate": "%{label}<br>%{value:.4g} ms of its own<br>"
                "%{percentRoot:.2%} of the step's, %{percentParent:.1%} of its parent"
                "<extra></extra>",
                "tiling": {"orientation": "h"},
                "pathbar": {"visible": True},
                "sort": False,
                "maxdepth": 4,
            }
        ],
        layout=layout(margin={"l": 8, "r": 8, "t": 28, "b": 8}),
        height=480,
    )


def _largest(nodes: Sequence[Node]) -> list[Node]:
    ops = sorted((node for node in nodes if node.is_op), key=lambda node: -node.own_s)
    modules = [node for node in nodes if not node.is_op]
    room = max(0, MAX_NODES - len(modules))
    rest: dict[str, float] = {}
    for node in ops[room:]:
        rest[node.parent] = rest.get(node.parent, 0.0) + node.own_s
    summed = [
        Node(id=f"{parent}//", parent=parent, label="smaller ops", own_s=seconds, is_op=True)
        for parent, seconds in rest.items()
    ]
    return [*modules, *ops[:room], *summed]


def _colour(node: Node) -> str:
    if not node.is_op:
        return GREY if node.id == ROOT else COLOURS[4]
    category = category_of(f"aten::{node.label}")
    return CATEGORY_COLOURS.get(category, CATEGORY_COLOURS[ALL_OTHERS])


def _table(opened: OpenRun) -> None:
    st.subheader("A steady step in a table")
    by = cast(By, st.segmented_control(
        "By", GROUPINGS, default="op", key="by", bind="query-params", required=True
    ))  # fmt: skip
    found = opened.op_table(by)
    st.dataframe(
        frame_of(found),
        hide_index=True,
        column_config=_columns(found),
        key=f"table by {by}",
        height=420,
        alt=f"A steady step by {by}, one row each, those that take most time first",
    )
    text.note(
        "Times, FLOPs and bytes are means of a steady step. Empty cells are not known: "
        + ("; ".join(_unknown(found)) or "none")
    )


def frame_of(found: OpTable) -> pd.DataFrame:
    """The table's numbers as they are, for sorting in the browser; not known is null."""
    rows = [
        {found.by: row.label, **{name: row.measures[name].value for name in TABLE_MEASURES},
         "bound": row.bound}
        for row in (*found.rows, found.total)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    for name in ("host_time", "device_time"):
        frame[name] = frame[name].astype("float64") * 1e3
    for name in ("share", "roofline"):
        frame[name] = frame[name].astype("float64") * 100
    return frame


def _columns(found: OpTable) -> dict[str, Any]:
    number = st.column_config.NumberColumn
    units = {
        "s": ("ms", "%.4g"),
        "fraction": ("%", "%.1f"),
        "bytes": ("bytes", "compact"),
        "FLOP": ("FLOP", "compact"),
        "count": ("", "%.4g"),
        "FLOP/byte": ("FLOP/byte", "%.3g"),
    }
    letters = {
        name: {row.measures[name].provenance for row in found.rows} - {None}
        for name in TABLE_MEASURES
    }
    out: dict[str, Any] = {found.by: st.column_config.TextColumn(found.by, width="medium")}
    for name in TABLE_MEASURES:
        unit, form = units[MEASURES[name]]
        provenance = ", ".join(sorted(str(one) for one in letters[name])) or "not known"
        title = f"{name.replace('_', ' ')}{f' ({unit})' if unit else ''}"
        out[name] = number(title, format=form, help=f"{WHAT[name]} ({provenance})")
    out["bound"] = st.column_config.TextColumn(help="which roof is above it")
    return out  # fmt: skip


def _unknown(found: OpTable) -> list[str]:
    reasons = {
        f"{name.replace('_', ' ')}: {metric.reason}"
        for name in TABLE_MEASURES
        if (metric := found.total.measures[name]).value is None
    }
    return sorted(reasons)


def _lines(opened: OpenRun, rows: pd.DataFrame, what: str) -> None:
    """One op down to its modules and source lines."""
    st.subheader("One op, where it comes from")
    names = rows["op"].map({op: _short(op) for op in rows["op"].unique()})
    order = rows.groupby(names)["s"].sum().sort_values(ascending=False)
    op = st.selectbox("Op", list(order.index), key="op", bind="query-params")
    if op is None:
        return
    of_op = rows[names == op]
    per_site = of_op.groupby("site")["s"].agg(["size", "sum"]).sort_values("sum", ascending=False)
    total = float(per_site["sum"].sum())
    text.table(
        f"{op}: {quantities.seconds(total)} of {what} a steady step",
        ("source line", "module", "phase", what, "of this op"),
        [
            _line(opened, int(str(site)), float(row["sum"]), total)
            for site, row in per_site.head(TOP_ROWS).iterrows()
        ],
        left=3,
    )
    if len(per_site) > TOP_ROWS:
        st.caption(f"{len(per_site) - TOP_ROWS:,} more lines, with less time, are not shown.")
    most = opened.details.site(int(str(per_site.index[0])))
    if most is not None and most.stack:
        with st.expander("The user's frames of the first line, innermost first"):
            st.code(text.clipped(most.stack), language=None)


def _short(op: object) -> str:
    return base_name(str(op)).removeprefix("aten::")


def _line(opened: OpenRun, number: int, seconds: float, total: float) -> tuple[object, ...]:
    site = opened.details.site(number)
    share = quantities.percent(seconds / total) if total else ""
    time = text.number(Cell(text=quantities.seconds(seconds), provenance="measured"))
    if site is None:
        return (UNKNOWN, UNKNOWN, "", time, share)
    place = f"{site.file}:{site.line} {site.function}".rstrip()
    return (place, site.module_label, site.phase, time, share)
