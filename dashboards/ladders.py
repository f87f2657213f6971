"""Page Ladders: everything under DIR, newest first, by name, target and status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import streamlit as st

from tpu_perf.analysis import quantities
from tpu_perf.errors import StoredRunError
from tpu_perf.record.run import Run
from tpu_perf.record.store import PARTIAL_SUFFIX, load_ladder, load_run

from . import text
from .directory import Directory, Found
from .loading import refused

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
    rows = [_row(directory.root, one, _runs_of(directory, one)) for one in found]
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


def _runs_of(directory: Directory, found: Found) -> tuple[tuple[str, str, int], ...]:
    """(rung, its run.json's directory, when that changed) of a ladder's rungs, "" where none."""
    if found.kind != "ladder":
        return ()
    try:
        ladder = load_ladder(directory.ladder(found.path))
    except StoredRunError:
        return ()
    out = []
    for entry in ladder.rungs:
        run = directory.root / found.path / entry.run / "run.json"
        try:
            changed = run.stat().st_mtime_ns
        except OSError:
            changed = 0
        usable = changed and refused(directory, found.path, entry.run) is None
        out.append((entry.name, str(run.parent) if usable else "", changed))
    return tuple(out)


@st.cache_data(max_entries=20_000, show_spinner=False)
def _row(root: Path, found: Found, runs: tuple[tuple[str, str, int], ...]) -> Row:
    """Reads documents only; `found` and `runs` change when one of them does."""
    directory = Directory(root)
    try:
        if found.kind == "ladder":
            return _ladder_row(directory, found, runs)
        if found.kind == "run":
            return _run_row(found, load_run(directory.run(found.path)).run)
        why = "interrupted, or still being measured"
    except StoredRunError as error:
        why = error.message
    status = "not finished" if found.kind == "partial" else "unreadable"
    name = Path(found.path).name.removesuffix(PARTIAL_SUFFIX)
    return Row(path=found.path, kind=found.kind, name=name, target="", status=status, rungs=why,
               started=_time(found.changed_ns), fastest="")  # fmt: skip


def _ladder_row(directory: Directory, found: Found, runs: tuple[tuple[str, str, int], ...]) -> Row:
    ladder = load_ladder(directory.ladder(found.path))
    opened: dict[str, Run] = {}
    for name, path, _ in runs:
        try:
            opened[name] = load_run(Path(path)).run
        except StoredRunError:
            continue
    counts = {status: sum(run.status == status for run in opened.values())
              for status in dict.fromkeys(run.status for run in opened.values())}  # fmt: skip
    if missing := len(ladder.rungs) - len(opened):
        counts["missing"] = missing  # type: ignore[index]
    bad = missing or any(counts.get(s) for s in ("failed", "timeout", "does_not_fit"))
    status = (
        "not finished" if ladder.finished_at is None else "with failures" if bad else "finished"
    )
    return Row(
        path=found.path, kind="ladder", name=ladder.name, started=ladder.started_at,
        target=", ".join(sorted({kind for run in opened.values() if (kind := _target(run))})),
        status=status, rungs=", ".join(f"{n} {s}" for s, n in counts.items()),
        fastest=_fastest(opened),
    )  # fmt: skip


def _run_row(found: Found, run: Run) -> Row:
    status = "finished" if run.status == "ok" else "with failures"
    return Row(
        path=found.path, kind="run", name=run.plan.rung, status=status, target=_target(run),
        started=run.started_at or _time(found.changed_ns), rungs=f"a run: {run.status}",
        fastest=_fastest({run.plan.rung: run}),
    )  # fmt: skip


def _target(run: Run) -> str:
    return "" if run.environment is None else run.environment.device_kind


def _fastest(runs: dict[str, Run]) -> str:
    times = {
        name: metric
        for name, run in runs.items()
        if (metric := run.metrics.get("step_time")) is not None and metric.value is not None
    }
    if not times:
        return ""
    name = min(times, key=lambda one: times[one].value or 0.0)
    letter = (times[name].provenance or "?")[0]
    return f"{name} {quantities.text('step_time', times[name])} {letter}"


def _time(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%dT%H:%M:%SZ}"
