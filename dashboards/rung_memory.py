"""Section Memory of a rung: live HBM over a step, what was alive at the peak, traffic by op."""

from __future__ import annotations

import streamlit as st

from tpu_perf.analysis import quantities
from tpu_perf.analysis.buffer_lifetimes import GROUPS
from tpu_perf.analysis.hbm_traffic import traffic
from tpu_perf.analysis.memory_peak import MemoryPeak
from tpu_perf.export.report import rung_tables
from tpu_perf.export.report.figures import (
    COLOURS,
    Figure,
    byte_unit,
    layout,
    shown,
    thin,
    time_unit,
)

from . import charts, text
from .loading import OpenRun

TOP_LINES = 25
TOP_OPS = 20


def show(opened: OpenRun) -> None:
    if opened.tables.timed.empty:
        text.message(
            "info", "No timed step was free of compiles, so there is no steady step to look into."
        )
        return
    peak = opened.memory
    charts.show(live(peak), "No buffer was allocated or released in a steady step: this engine "
                "does not report its memory, or nothing moved.")  # fmt: skip
    if peak.step is not None:
        _at_peak(peak)
    _traffic(opened)


def live(peak: MemoryPeak) -> Figure | None:
    """Live bytes over a typical step."""
    if peak.timeline.empty:
        return None
    factor, unit = time_unit([float(peak.timeline["t_s"].max())])
    scale, bytes_unit = byte_unit(float(peak.timeline["live_bytes"].max()))
    x, y = thin(
        factor * peak.timeline["t_s"].to_numpy(), peak.timeline["live_bytes"].to_numpy() / scale
    )
    return Figure(
        id="live",
        title="Live device memory within a step",
        description="Live bytes from buffer lifetimes (measured) over the timed step whose "
        "duration is nearest to the median; a program's temporaries are not in it.",
        data=[
            {"type": "scatter", "mode": "lines", "x": x, "y": y, "fill": "tozeroy",
             "line": {"shape": "hv", "color": COLOURS[0], "width": 2},
             "hovertemplate": f"%{{x:.4g}} {unit}: %{{y:.4g}} {bytes_unit}<extra></extra>",
             "showlegend": False}
        ],
        layout=layout(
            xaxis={"title": {"text": f"time since the step began ({unit})"}},
            yaxis={"title": {"text": f"live memory ({bytes_unit})"}, "rangemode": "tozero"},
        ),
        height=340,
    )  # fmt: skip


def _at_peak(peak: MemoryPeak) -> None:
    st.subheader("What was alive at the peak")
    moment = "" if peak.after_step_start_s is None else (
        f", {quantities.seconds(peak.after_step_start_s)} after it began"
    )  # fmt: skip
    text.note(f"In step {peak.step}{moment}, phase {peak.phase}.")
    figures = {
        "live buffers": peak.tensors,
        "with the temporaries of the program then enqueued": peak.with_temporaries,
        f"largest temporaries of one program {peak.temporaries_of}".rstrip(): peak.temporaries,
    }
    text.table(
        "Bytes at the peak of steady steps",
        ("what", "bytes"),
        [
            (name, text.number(rung_tables.cell("hbm_peak_bytes", metric)))
            for name, metric in figures.items()
        ],
    )
    charts.show(groups(peak), "")
    text.table(
        "By group and line, most bytes first",
        ("group", "allocated at", "bytes", "buffers", "names"),
        [
            (held.group, held.where, quantities.byte_count(held.nbytes), f"{held.buffers:,}",
             ", ".join(held.names[:4]) + (" ..." if len(held.names) > 4 else ""))
            for held in peak.lines[:TOP_LINES]
        ],
        left=2,
    )  # fmt: skip
    hidden = peak.lines[TOP_LINES:]
    if hidden:
        rest = quantities.byte_count(sum(held.nbytes for held in hidden))
        text.note(f"{len(hidden):,} more lines hold {rest}.")
    if peak.unseen_bytes:
        text.note(
            f"{quantities.byte_count(peak.unseen_bytes)} of these were released while nothing "
            "was recorded, so they look alive and are not in the peak."
        )


def groups(peak: MemoryPeak) -> Figure | None:
    if not peak.groups:
        return None
    scale, unit = byte_unit(max(held.nbytes for held in peak.groups))
    return Figure(
        id="groups",
        title="By what they were for",
        description="Derived from the labels found on buffers and from when they were allocated "
        "and released.",
        data=[
            {"type": "bar", "orientation": "h", "y": [held.group for held in peak.groups],
             "x": [held.nbytes / scale for held in peak.groups],
             "marker": {"color": COLOURS[0]},
             "customdata": [
                 f"{quantities.byte_count(held.nbytes)} in {held.buffers:,} buffers: "
                 f"{GROUPS[held.group]}" for held in peak.groups
             ],
             "hovertemplate": "%{y}: %{customdata}<extra></extra>", "showlegend": False}
        ],
        layout=layout(
            xaxis={"title": {"text": f"bytes at the peak ({unit})"}},
            yaxis={"type": "category", "autorange": "reversed", "automargin": True},
        ),
        height=110 + 34 * len(peak.groups),
    )  # fmt: skip


def _traffic(opened: OpenRun) -> None:
    st.subheader("Traffic")
    found = traffic(opened.tables, opened.details, opened.measured)
    text.table(
        "Device memory traffic of a steady step",
        ("what", "bytes"),
        [
            (name, text.number(rung_tables.cell("hbm_boundary_bytes_per_step", metric)))
            for name, metric in (
                ("across program boundaries", found.boundary),
                ("accessed, as XLA counts", found.accessed),
                ("each op on its own, as in Strict", found.separate),
                ("saved by programs of several ops", found.saved),
            )
        ],
    )
    charts.show(by_op(opened), "Which op moves how much is not known: no program was recorded in "
                "a steady step, or its bytes are not.", heading=False)  # fmt: skip
    text.provenance_legend()


def by_op(opened: OpenRun) -> Figure | None:
    """The ops that move most bytes, across boundaries and as accessed."""
    rows = opened.op_table("op").rows

    def bytes_of(name: str) -> dict[str, float]:
        return {row.label: row.measures[name].value or 0.0 for row in rows}

    boundary, accessed = bytes_of("boundary_bytes"), bytes_of("accessed_bytes")
    largest = {label: max(boundary[label], accessed[label]) for label in boundary}
    order = sorted((label for label in largest if largest[label]), key=lambda one: -largest[one])
    if not order:
        return None
    top = order[:TOP_OPS]
    scale, unit = byte_unit(largest[top[0]])
    return Figure(
        id="traffic",
        title="Traffic by op",
        description=f"Bytes of a steady step by op (derived), the {len(top)} ops of {len(order)} "
        "that move most.",
        data=[
            {"type": "bar", "orientation": "h", "name": name,
             "y": [shown(label) for label in top],
             "x": [values[label] / scale for label in top],
             "marker": {"color": colour},
             "customdata": [quantities.byte_count(values[label]) for label in top],
             "hovertemplate": "%{y}: %{customdata}<extra>%{fullData.name}</extra>"}
            for name, values, colour in (
                ("across program boundaries", boundary, COLOURS[0]),
                ("accessed, as XLA counts", accessed, COLOURS[1]),
            )
        ],
        layout=layout(
            barmode="group",
            xaxis={"title": {"text": f"bytes of a step ({unit})"}},
            yaxis={"type": "category", "autorange": "reversed", "automargin": True},
        ),
        height=140 + 30 * len(top),
    )  # fmt: skip
