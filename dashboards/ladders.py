"""Page Ladders: everything under DIR, newest first, by name, target and status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path, PurePath

import streamlit as st

from tpu_perf.analysis import quantities
from tpu_perf.analysis.history import HistoryPoint
from tpu_perf.errors import StoredRunError
from tpu_perf.record.ladder import Ladder
from tpu_perf.record.store import PARTIAL_SUFFIX, load_ladder

from . import text
from .directory import Directory, Found
from .listing import metric_history

PAGE_ROWS = 50
ANY = "any"
STATUSES = ("finished", "with failures", "not finished", "unreadable")
SYMBOLS = {"finished": "✓", "with failures": "✗", "not finished": "…", "unreadable": "?"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the list. `target`: device kinds the rungs ran on, or were predicted for."""

    path: str
    kind: str
    name: str
    started: str
    target: str
    status: str
    rungs: str
    fastest: str


def show(directory: Directory) -> None:
    st.title("Ladders")
    found = directory.found()
    if not found:
        _empty(directory)
        return
    rows = rows_of(directory, found)
    name, target, status = st.columns([2, 1, 1])
    wanted = name.text_input("Name", key="name", bind="query-params", placeholder="part of a name")
    targets = sorted({row.target for row in rows if row.target})
    on = target.selectbox("Target", [ANY, *targets], key="target", bind="query-params")
    state = status.selectbox("Status", [ANY, *STATUSES], key="status", bind="query-params")
    chosen = [
        row
        for row in rows
        if wanted.casefold() in f"{row.name} {row.path}".casefold()
        and on in (ANY, row.target)
        and state in (ANY, row.status)
    ]
    if not chosen:
        text.message("info", f"None of the {len(rows):,} ladders and runs here matches.")
        return
    pages = -(-len(chosen) // PAGE_ROWS)
    page = 1
    if pages > 1:
        page = int(st.number_input("Page", 1, pages, key="page", bind="query-params"))
    text.table(
        f"{len(chosen):,} of {len(rows):,}, newest first",
        ("name", "status", "target", "started (UTC)", "rungs", "fastest rung"),
        [_cells(row) for row in chosen[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]],
        left=6,
    )


def _empty(directory: Directory) -> None:
    text.message("info", f"There is no ladder and no run under {directory.root} yet.")
    st.write("Measure one, and it shows here:")
    st.code("tpu-perf ladder ladders/quick.yaml", language="bash")


def _cells(row: Row) -> Sequence[object]:
    name = row.name or row.path
    if row.kind == "ladder":
        shown = text.link(name, "ladder", ladder=row.path)
    else:
        shown = text.link(name, "rung", run=row.path)
    status = f"{SYMBOLS[row.status]} {row.status}"
    where = f'{shown}<span class="interval">{text.escaped(row.path)}</span>'
    started = row.started[:16].replace("T", " ")
    return (text.Html(where), status, row.target, started, row.rungs, row.fastest)


def rows_of(directory: Directory, found: Sequence[Found]) -> list[Row]:
    """A row for each; what runs came to is taken from the index of DIR."""
    index = metric_history(directory, "step_time")
    ladders = {one.path for one in found if one.kind == "ladder"}
    runs: dict[str, dict[str, HistoryPoint]] = {}
    names: dict[str, str] = {}
    for series in index.series:
        for point in series.points:
            home = next((str(p) for p in PurePath(point.path).parents if str(p) in ladders), "")
            runs.setdefault(home or point.path, {})[point.path] = point
            names[point.path] = series.rung
    broken = index.unreadable
    return [
        _run_row(one, names[one.path], *runs[one.path].values())
        if one.path in names
        else _row(directory, one, runs.get(one.path, {}), broken.get(one.path, ""))
        for one in found
    ]


def _row(
    directory: Directory, found: Found, runs: Mapping[str, HistoryPoint], unreadable: str
) -> Row:
    if found.kind == "ladder":
        try:
            return _ladder_row(found, _ladder(directory.root, found), runs)
        except StoredRunError as error:
            unreadable = error.message
    partial = found.kind == "partial"
    return Row(
        path=found.path,
        kind=found.kind,
        name=PurePath(found.path).name.removesuffix(PARTIAL_SUFFIX),
        target="",
        status="not finished" if partial else "unreadable",
        started=_time(found.changed_ns),
        rungs="interrupted, or still being measured" if partial else unreadable,
        fastest="",
    )


@lru_cache(maxsize=20_000)
def _ladder(root: Path, found: Found) -> Ladder:
    """Read once for as long as it does not change, which `found` would show."""
    return load_ladder(Directory(root).ladder(found.path))


def _ladder_row(found: Found, ladder: Ladder, runs: Mapping[str, HistoryPoint]) -> Row:
    opened = {
        rung.name: point
        for rung in ladder.rungs
        if (point := runs.get(PurePath(found.path, rung.run).as_posix())) is not None
    }
    counts = Counter(point.status for point in opened.values())
    if missing := len(ladder.rungs) - len(opened):
        counts["missing"] = missing
    bad = any(counts[status] for status in ("missing", "failed", "timeout", "does_not_fit"))
    ended = "with failures" if bad else "finished"
    return Row(
        path=found.path, kind="ladder", name=ladder.name, started=ladder.started_at,
        target=", ".join(sorted({kind for one in opened.values() if (kind := _target(one))})),
        status="not finished" if ladder.finished_at is None else ended,
        rungs=", ".join(f"{number} {status}" for status, number in counts.items()),
        fastest=_fastest(opened),
    )  # fmt: skip


def _run_row(found: Found, name: str, point: HistoryPoint) -> Row:
    return Row(
        path=found.path, kind="run", name=name, target=_target(point),
        status="finished" if point.status == "ok" else "with failures",
        started=point.started_at or _time(found.changed_ns), rungs=f"a run: {point.status}",
        fastest=_fastest({"": point}),
    )  # fmt: skip


def _target(point: HistoryPoint) -> str:
    device = point.environment.get("device", "")
    return "" if device.startswith("unknown") else device


def _fastest(runs: Mapping[str, HistoryPoint]) -> str:
    times = {name: one.metric for name, one in runs.items() if one.metric.value is not None}
    if not times:
        return ""
    name = min(times, key=lambda one: times[one].value or 0.0)
    letter = (times[name].provenance or "?")[0]
    return f"{name} {quantities.text('step_time', times[name])} {letter}".lstrip()


def _time(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%dT%H:%M:%SZ}"
