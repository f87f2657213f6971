"""Page Rung: one run from its step time down to an op and its source line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import PurePath

import streamlit as st

from tpu_perf.errors import StoredRunError
from tpu_perf.export.report import series_charts
from tpu_perf.record.store import load_ladder

from . import (
    charts,
    rung_memory,
    rung_ops,
    rung_programs,
    rung_roofline,
    rung_steps,
    rung_timeline,
    text,
)
from .directory import Directory
from .loading import OpenRun, ladder_around, partial_of, run_of

SECTIONS: dict[str, Callable[[OpenRun], None]] = {
    "Steps": rung_steps.show,
    "Timeline": rung_timeline.show,
    "Modules and ops": rung_ops.show,
    "Roofline": rung_roofline.show,
    "Memory": rung_memory.show,
    "Programs and cache": rung_programs.show,
}
#: Sections that show a table which the reader can sort.
WITH_GRID = ("Modules and ops", "Programs and cache")


def show(directory: Directory) -> None:
    path = st.query_params.get("run")
    if path is None:
        st.title("Rung")
        text.message("info", "Choose a ladder on the page Ladders, and one of its rungs there.")
        return
    around = ladder_around(directory, path)
    _siblings(directory, path, around)
    try:
        opened = run_of(directory, path)
    except StoredRunError as error:
        if not _unfinished(directory, path):
            text.title(PurePath(path).name or "Rung")
            text.problem(error)
        return
    _head(opened, path, around)
    if opened.stored.run.status != "ok" and opened.tables.steps.empty:
        return
    tabs = st.tabs(list(SECTIONS), key="section", bind="query-params")
    for tab, (name, section) in zip(tabs, SECTIONS.items(), strict=True):
        if not tab.open:
            continue
        ahead = charts.fetched_ahead(grid=name in WITH_GRID)
        with tab, nullcontext() if name in opened.shown else ahead:
            try:
                section(opened)
            except StoredRunError as error:
                text.problem(error)
        opened.shown.add(name)


def _siblings(directory: Directory, path: str, around: str | None) -> None:
    """A way back to the ladder, and to its other rungs."""
    if around is None:
        return
    try:
        ladder = load_ladder(directory.ladder(around))
    except StoredRunError:
        return
    back, other = st.columns([2, 1], vertical_alignment="bottom")
    back.html(f'<div class="tp">Ladder {text.link(ladder.name, "ladder", ladder=around)}</div>')
    paths = {f"{around}/{rung.run}".removeprefix("./"): rung.name for rung in ladder.rungs}
    if path in paths and len(paths) > 1:
        chosen = other.selectbox(
            "Rung",
            list(paths),
            index=list(paths).index(path),
            format_func=lambda one: paths[one],
            key=f"rung of {path}",
        )
        if chosen != path:
            st.query_params["run"] = chosen
            for name in ("from", "to", "op"):
                st.query_params.pop(name, None)
            st.rerun()


def _head(opened: OpenRun, path: str, around: str | None) -> None:
    run = opened.stored.run
    text.title(run.plan.rung)
    environment = run.environment
    where = "unknown machine" if environment is None else (
        f"{environment.device_kind} on {environment.hostname} ({environment.cpu})"
    )  # fmt: skip
    text.note(
        f"{path} · {run.started_at or 'start not recorded'} · {where} · mode {run.plan.mode}, "
        f"{run.plan.precision}"
    )
    if run.status != "ok":
        nothing = "It recorded no step, so there is nothing more to show."
        below = nothing if opened.tables.steps.empty else "What it recorded until then is below."
        text.message("error", f"{run.status}: {run.reason}", below)
    if opened.rung.why:
        text.message("info", opened.rung.why)
    for warning in opened.rung.warnings:
        text.message("warning", warning)


def _unfinished(directory: Directory, path: str) -> bool:
    """Explain a run directory that never got its name, with the steps it had; False if none."""
    try:
        found = partial_of(directory, path)
    except StoredRunError:
        return False
    if found is None or found.tables is None:
        return False
    text.title(found.name)
    text.message(
        "warning",
        "This run was interrupted, or is still being measured: it has no result yet, only what "
        f"was written on the way ({found.path}).",
    )
    try:
        figure = series_charts.step_series([found])
    except StoredRunError as error:
        text.problem(error)
        return True
    charts.show(figure, "It had written no step yet.")
    return True
