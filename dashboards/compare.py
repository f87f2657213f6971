"""Page Compare: two runs side by side: what changed, what moved, and whether it is noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import streamlit as st

from tpu_perf.analysis import quantities
from tpu_perf.analysis.moved_time import Moved
from tpu_perf.analysis.run_comparison import RunComparison, compare_runs
from tpu_perf.analysis.rung_record import durations
from tpu_perf.errors import NotComparable
from tpu_perf.export.comparison import rows
from tpu_perf.export.report.figures import COLOURS, GREY, Figure, layout, shown, time_unit
from tpu_perf.record.store import load_run

from . import charts, text
from .choosing import choose
from .directory import Directory
from .listing import ListedRun, listed_runs
from .loading import Fingerprint, OpenRun, fingerprint, run_of

TOP = 20
MAX_BINS = 50
VERDICT_COLOURS = {"worse": COLOURS[5], "better": COLOURS[2]}
NOT_SHOWN = "no difference found, or too few samples"


def show(directory: Directory) -> None:
    st.title("Compare two runs")
    runs = listed_runs(directory)
    if len(runs) < 2:
        text.message(
            "info", "There are fewer than two finished runs here, so there is nothing to compare."
        )
        return
    base, new = st.columns(2)
    chosen = [
        choose(column, label, list(runs), parameter, lambda path: _name(runs[path]))
        for column, label, parameter in ((base, "Base", "base"), (new, "New", "new"))
    ]
    if None in chosen:
        st.write("Choose a base and what to set against it. The address then shows this comparison "
                 "again.")  # fmt: skip
        return
    before, after = (run_of(directory, str(path)) for path in chosen)
    places = before.stored.directory, after.stored.directory
    marks = fingerprint(places[0]), fingerprint(places[1])
    force = st.checkbox(
        "Compare them even if they differ in chip, precision, batch or versions",
        key="force",
        bind="query-params",
    )
    try:
        found = _compared(*places, force, marks)
    except NotComparable as error:
        text.problem(NotComparable(error.message, hint="Tick the box above to compare them."))
        return
    _show(found, before, after)


def _name(run: ListedRun) -> str:
    return f"{run.ladder} / {run.rung} · {run.started} · {run.path}"


@st.cache_resource(max_entries=12, show_spinner="Comparing")
def _compared(
    base: Path, new: Path, force: bool, _changes_with: tuple[Fingerprint, Fingerprint]
) -> RunComparison:
    return compare_runs(load_run(base), load_run(new), force=force)


def _show(found: RunComparison, before: OpenRun, after: OpenRun) -> None:
    if found.blocking:
        text.message(
            "warning",
            "They differ in what decides how fast a step is, so the ratios say little of the code.",
        )
    text.table("Metrics, new against base", rows.METRIC_HEAD, rows.metric_rows(found), words=(5,))
    text.note(rows.LEGEND)
    text.bullets(rows.notes(found))
    charts.show(step_times(before, after), "One of the runs has no timed step without compiles.")
    for by in ("op", "module"):
        moved = [one for one in found.moved if one.by == by and one.difference_s]
        charts.show(moved_chart(moved, by), f"No {by} moved, or neither run recorded any.")
        if moved:
            _moved_table(moved, by)
    if found.differences:
        text.table(
            "In what the runs differ",
            ("what", "base", "new", ""),
            [
                (one.what, one.base, one.new, "decides speed" if one.blocking else "")
                for one in found.differences
            ],
            left=4,
        )


def step_times(before: OpenRun, after: OpenRun) -> Figure | None:
    """Both runs' steady steps by duration, as shares, in the same bins."""
    both = durations(before.tables.timed), durations(after.tables.timed)
    if not all(len(one) for one in both):
        return None
    merged = np.concatenate(both)
    factor, unit = time_unit([float(merged.max())])
    bins = int(np.clip(np.sqrt(len(merged)) * 2, 8, MAX_BINS))
    edges = np.histogram_bin_edges(factor * merged, bins=bins)
    data = []
    for name, seconds, colour, pattern in (
        ("base", both[0], COLOURS[0], ""), ("new", both[1], COLOURS[1], "/"),
    ):  # fmt: skip
        counts, _ = np.histogram(factor * seconds, bins=edges)
        data.append(
            {
                "type": "bar",
                "name": f"{name} ({len(seconds):,} steps)",
                "x": ((edges[:-1] + edges[1:]) / 2).tolist(),
                "y": (100 * counts / len(seconds)).tolist(),
                "width": np.diff(edges).tolist(),
                "opacity": 0.65,
                "marker": {"color": colour, "pattern": {"shape": pattern}, "line": {"width": 0}},
                "hovertemplate": f"%{{x:.4g}} {unit}: %{{y:.1f}} %<extra>{name}</extra>",
            }
        )
    return Figure(
        id="step-times",
        title="Step time, side by side",
        description=f"Fenced, compile-free timed steps by duration, in {unit} (measured); each "
        "run's bars add up to 100 %.",
        data=data,
        layout=layout(
            barmode="overlay",
            xaxis={"title": {"text": f"step time ({unit})"}},
            yaxis={"title": {"text": "steps (%)"}},
        ),
        height=320,
    )


def moved_chart(moved: Sequence[Moved], by: str) -> Figure | None:
    """What takes more (to the right) or less time in the new run, most first."""
    top = sorted(moved, key=lambda one: -abs(one.difference_s))[:TOP]
    if not top:
        return None
    factor, unit = time_unit([one.difference_s for one in top])
    names = [f"{shown(one.label[:80])} ({one.lane})" for one in top]
    data = []
    for verdict in ("worse", "better", NOT_SHOWN):
        chosen = [
            (name, one) for name, one in zip(names, top, strict=True)
            if one.verdict == verdict or (verdict == NOT_SHOWN and one.verdict not in
                                          VERDICT_COLOURS)
        ]  # fmt: skip
        if chosen:
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": verdict,
                    "y": [name for name, _ in chosen],
                    "x": [factor * one.difference_s for _, one in chosen],
                    "marker": {"color": VERDICT_COLOURS.get(verdict, GREY)},
                    "customdata": [
                        f"{quantities.seconds(one.base_s)} to {quantities.seconds(one.new_s)}"
                        for _, one in chosen
                    ],
                    "hovertemplate": "%{y}: %{customdata}<extra></extra>",
                }
            )
    return Figure(
        id=f"moved-{by}",
        title=f"What moved, by {by}",
        description=f"Time of a steady step, new less base, in {unit}: to the right what takes "
        "longer now. Coloured where p < 0.05 with the false discovery rate kept at 5 %.",
        data=data,
        layout=layout(
            xaxis={"title": {"text": f"change ({unit})"}, "zeroline": True},
            yaxis={"type": "category", "categoryorder": "array", "categoryarray": names[::-1],
                   "automargin": True},
        ),
        height=150 + 26 * len(top),
    )  # fmt: skip


def _moved_table(moved: Sequence[Moved], by: str) -> None:
    top = sorted(moved, key=lambda one: -abs(one.difference_s))[:TOP]
    text.table(
        f"By {by}, the {len(top)} of {len(moved):,} that moved most",
        (by, "lane", "base", "new", "moved", "calls a step", "verdict"),
        [
            (
                one.label,
                one.lane,
                quantities.seconds(one.base_s),
                quantities.seconds(one.new_s),
                f"{'+' if one.difference_s > 0 else '-'}"
                f"{quantities.seconds(abs(one.difference_s))}",
                f"{one.base_calls:g} to {one.new_calls:g}",
                one.verdict + (f" (p {quantities.small(one.p_value)})" if one.p_value else ""),
            )
            for one in top
        ],
        left=2,
        words=(6,),
    )
