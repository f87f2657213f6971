"""Page Run: start a ladder with overrides, and watch it while it is measured."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import streamlit as st

from tpu_perf.analysis import quantities
from tpu_perf.analysis.rung_record import RungRecord, durations, open_rung
from tpu_perf.config.yaml_source import read_document
from tpu_perf.errors import StoredRunError, TpuPerfError
from tpu_perf.export.report import series_charts
from tpu_perf.record.ladder import Ladder
from tpu_perf.record.store import load_ladder

from . import charts, ladder_process, text
from .directory import Directory
from .ladder_process import LadderProcess
from .loading import partial_of, refused

#: Reading takes time from what is being measured, so not more often.
REFRESH_S = 2.0
SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class RungState:
    """How far a rung is: waiting | under way | a status of `Run`."""

    name: str
    state: str
    steps: int
    latest_s: float | None


def show(directory: Directory) -> None:
    st.title("Run a ladder")
    watched = st.query_params.get("ladder")
    if watched is None and (process := ladder_process.running()) is not None:
        watched = directory.below(process.out)
    if watched is not None:
        _watch(directory, watched)
        st.divider()
    _form(directory)


def ladder_files() -> dict[str, Path]:
    """Ladder files of the directory in which the dashboard was started, and of its `ladders/`.
    None of DIR: what lies there may come from anywhere, and a ladder file can name code to run."""
    found = {}
    for folder in (Path.cwd(), Path.cwd() / "ladders"):
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if path.suffix in SUFFIXES and path.is_file():
                found[path.relative_to(Path.cwd()).as_posix()] = path
    return found


def _form(directory: Directory) -> None:
    files = ladder_files()
    if not files:
        text.message(
            "info",
            f"There is no ladder file (.yaml) in {Path.cwd()} or its folder ladders. "
            "Start the dashboard where your ladder files are.",
        )
        return
    name = st.selectbox("Ladder file", list(files), key="file", bind="query-params")
    file = files[str(name)]
    try:
        names = rung_names(file)
        shown = file.read_text(encoding="utf-8", errors="replace")
    except (TpuPerfError, OSError) as error:
        text.message("error", error)
        return
    with st.expander("What the file says"):
        st.code(shown, language="yaml")
    with st.form("run"):
        only = st.multiselect("Rungs", names, default=names)
        lines = st.text_area(
            "Overrides, one path=value a line", placeholder="sampling.rounds=3", height=110
        )
        st.caption(
            "Close what else runs on this machine: it would be measured too. The dashboard itself "
            f"looks every {REFRESH_S:.0f} s while a ladder runs."
        )
        if st.form_submit_button("Start", type="primary", icon=":material/play_arrow:"):
            overrides = [line.strip() for line in lines.splitlines() if line.strip()]
            _start(directory, file, overrides, [] if only == names else only)


def rung_names(file: Path) -> list[str]:
    """What the file calls its rungs. Raises ConfigError if it is no YAML."""
    data = read_document(file).data
    rungs = data.get("rungs") if isinstance(data, dict) else None
    entries = rungs if isinstance(rungs, list) else []
    return [str(one.get("name") or one.get("rung")) if isinstance(one, dict) else str(one)
            for one in entries]  # fmt: skip


def _start(directory: Directory, file: Path, overrides: list[str], only: list[str]) -> None:
    try:
        process = ladder_process.start(directory, file, overrides, only)
    except TpuPerfError as error:
        text.problem(error)
        return
    st.query_params["ladder"] = directory.below(process.out)
    st.rerun()


def _watch(directory: Directory, path: str) -> None:
    out = directory.resolve(path)
    process = ladder_process.started(out)
    running = process is not None and process.running

    @st.fragment(run_every=REFRESH_S if running else None)
    def live() -> None:
        try:
            _progress(directory, path, process)
        except TpuPerfError as error:
            text.problem(error)
        if running and process is not None and not process.running:
            st.rerun()

    live()


def _progress(directory: Directory, path: str, process: LadderProcess | None) -> None:
    text.title(path, level=2)
    if process is None:
        st.caption("Not started by this dashboard; this is what its directory says.")
    elif process.running:
        text.message("info", "Running.")
        st.button("Stop", icon=":material/stop:", on_click=process.interrupt,
                  help="As Ctrl-C: it ends, and leaves what it has.")  # fmt: skip
    else:
        ended_well = process.process.returncode == 0
        text.message("success" if ended_well else "error", f"The ladder {process.ending}.")
    if process is not None:
        st.code(shlex.join(process.command), language="bash", wrap_lines=True)
    try:
        ladder = load_ladder(directory.ladder(path))
    except StoredRunError as error:
        if process is None:
            text.problem(error)
        elif process.running:
            st.write("It has not written its plan yet: loading its libraries.")
    else:
        st.html(f'<div class="tp">{text.link("Open this ladder", "ladder", ladder=path)}</div>')
        _rungs(directory, path, ladder)
    said = ladder_process.tail(directory.resolve(f"{path}.log"))
    if said.strip():
        with st.expander("What it said", expanded=process is not None and not process.running):
            st.code(said, language=None)


def _rungs(directory: Directory, path: str, ladder: Ladder) -> None:
    rungs = opened(directory, path, ladder)
    rows = []
    for rung in rungs:
        state = state_of(rung)
        latest = "" if state.latest_s is None else quantities.seconds(state.latest_s)
        rows.append((state.name, state.state, f"{state.steps:,}", latest))
    text.table("Rungs (measured so far)", ("rung", "state", "steps", "median step"), rows, left=2)
    charts.show(series_charts.step_series(rungs), "No rung has written a step yet.")


def opened(directory: Directory, path: str, ladder: Ladder) -> list[RungRecord]:
    """The rungs as they are now, those under way with the steps they have written."""
    out = []
    for entry in ladder.rungs:
        rung = open_rung(directory.root / path, entry.name, entry.run)
        if rung.run is None and refused(directory, path, entry.run) is None:
            partial = partial_of(directory, f"{path}/{entry.run}")
            out.append(rung if partial is None else partial)
        else:
            out.append(rung)
    return out


def state_of(rung: RungRecord) -> RungState:
    """`latest_s`: the median of its timed steps so far, of any steps where it has none yet."""
    steps = pd.DataFrame() if rung.tables is None else rung.tables.steps
    latest = None
    if not steps.empty and rung.tables is not None:
        chosen = steps if rung.tables.timed.empty else rung.tables.timed
        latest = float(pd.Series(durations(chosen)).median())
    if rung.run is not None:
        state = rung.run.status + (f": {rung.run.reason}" if rung.run.reason else "")
    else:
        state = "waiting" if rung.tables is None else "under way"
    return RungState(name=rung.name, state=state, steps=len(steps), latest_s=latest)
