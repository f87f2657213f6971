"""Runs under DIR by name, from the index that `tpu-perf history` keeps."""

from __future__ import annotations

from dataclasses import dataclass

from tpu_perf.analysis.history import History, history
from tpu_perf.analysis.history_index import INDEX_FILE
from tpu_perf.errors import StoredRunError

from .directory import Directory


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """A finished run; `path` is that of its directory below DIR."""

    path: str
    ladder: str
    rung: str
    started: str


def metric_history(directory: Directory, metric: str) -> History:
    """`history` of DIR. Raises StoredRunError if DIR's index leads elsewhere."""
    index = directory.root / INDEX_FILE
    if index.is_symlink():
        raise StoredRunError(f"{INDEX_FILE} is a symlink and is not used", hint="remove it")
    return history(directory.root, metric)


def listed_runs(directory: Directory) -> dict[str, ListedRun]:
    """Every run with a result by its path, newest first."""
    found = metric_history(directory, "step_time")
    runs = [
        ListedRun(
            path=point.path,
            ladder=series.ladder,
            rung=series.rung,
            started=(point.started_at or "unknown time")[:16].replace("T", " "),
        )
        for series in found.series
        for point in series.points
        if point.status == "ok"
    ]
    return {run.path: run for run in sorted(runs, key=lambda run: run.started, reverse=True)}
