"""An index over run directories, so that thousands of runs list at once; it can be rebuilt."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_perf.errors import StoredRunError

INDEX_FILE = ".tpu_perf_index.sqlite"
#: Another number makes every older index be built anew.
INDEX_VERSION = 1
RUN_FILE, PARTIAL_SUFFIX = "run.json", ".partial"  # as record.store has them, which loads pandas
UNREADABLE = "unreadable"
MAX_DEPTH = 8

_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    path TEXT PRIMARY KEY, mtime_ns INTEGER, size INTEGER, ladder TEXT, rung TEXT,
    started_at TEXT, status TEXT, reason TEXT, git_commit TEXT, environment TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metrics (
    name TEXT, path TEXT, value REAL, unit TEXT, provenance TEXT, low REAL, high REAL, reason TEXT,
    PRIMARY KEY (name, path)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run.json below the indexed directory; `path` is the run's, relative to it."""

    path: str
    mtime_ns: int
    size: int


def find_runs(directory: Path) -> Iterator[FoundRun]:
    """Every run directory below. Links are not followed, so nothing outside is ever read; runs
    still being written, and hidden directories, are left out."""
    yield from _find(str(directory), "", MAX_DEPTH)


def _find(root: str, path: str, depth: int) -> Iterator[FoundRun]:
    here = os.path.join(root, path) if path else root
    with suppress(OSError):
        found = os.stat(os.path.join(here, RUN_FILE), follow_symlinks=False)
        if stat.S_ISREG(found.st_mode):
            yield FoundRun(path or ".", found.st_mtime_ns, found.st_size)
        return
    if not depth:
        return
    try:
        with os.scandir(here) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for name in names:
        if not name.startswith(".") and not name.endswith(PARTIAL_SUFFIX):
            yield from _find(root, f"{path}/{name}" if path else name, depth - 1)


def open_index(directory: Path, *, rebuild: bool = False) -> sqlite3.Connection:
    """The index of a directory, brought up to date: runs that are new or changed are read, those
    gone forgotten. It lies in the directory, or in memory where that cannot be written."""
    file = directory / INDEX_FILE
    if rebuild:
        _remove(file)
    try:
        return _updated(_connect(file), directory)
    except sqlite3.Error as error:
        # Damaged, of another version, locked for too long, or not writable: the runs have it all.
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_BUSY:
            with suppress(OSError, sqlite3.Error):
                _remove(file)
                return _updated(_connect(file), directory)
        return _updated(_connect(None), directory)


def _remove(file: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)


def _connect(file: Path | None) -> sqlite3.Connection:
    index = sqlite3.connect(":memory:" if file is None else file, timeout=10)
    try:
        index.execute("PRAGMA trusted_schema = OFF")
        (version,) = index.execute("PRAGMA user_version").fetchone()
        if version == 0:
            # One transaction: of two processes that begin at once, the second finds it made.
            script = f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {INDEX_VERSION}; COMMIT;"
            index.executescript(script)
        elif version != INDEX_VERSION:
            raise sqlite3.DatabaseError(f"index version {version}")
    except sqlite3.Error:
        index.close()
        raise
    return index


def _updated(index: sqlite3.Connection, directory: Path) -> sqlite3.Connection:
    try:
        known = {
            path: (mtime_ns, size)
            for path, mtime_ns, size in index.execute("SELECT path, mtime_ns, size FROM runs")
        }
        found = {run.path: run for run in find_runs(directory)}
        changed = [r for r in found.values() if known.get(r.path) != (r.mtime_ns, r.size)]
        gone = [(path,) for path in known if path not in found]
        if changed or gone:
            with index, closing(index.cursor()) as cursor:
                stale = [*gone, *((run.path,) for run in changed)]
                cursor.executemany("DELETE FROM runs WHERE path = ?", stale)
                cursor.executemany("DELETE FROM metrics WHERE path = ?", stale)
                for run in changed:
                    _insert(cursor, directory, run)
    except sqlite3.Error:
        index.close()
        raise
    return index


def _insert(cursor: sqlite3.Cursor, directory: Path, found: FoundRun) -> None:
    key = (found.path, found.mtime_ns, found.size)
    try:
        run, metrics = _read(directory / found.path)
    except StoredRunError as error:
        run = (None, None, None, UNREADABLE, error.message, None, "{}")
        metrics = []
    cursor.execute("INSERT INTO runs VALUES (?,?,?,?,?,?,?,?,?,?)", (*key, *run))
    rows = [(name, found.path, *values) for name, *values in metrics]
    cursor.executemany("INSERT INTO metrics VALUES (?,?,?,?,?,?,?,?)", rows)


def _read(directory: Path) -> tuple[tuple[Any, ...], list[tuple[Any, ...]]]:
    from tpu_perf.record.store import load_run  # brings pandas, which listing does without

    run = load_run(directory).run
    there = run.environment
    environment = {}
    if there is not None:
        environment = {
            "device": f"{there.device_kind} x {there.device_count}",
            "cpu": f"{there.cpu}, {there.cores} cores",
            "host": there.hostname,
            "python": there.python,
            **there.versions,
        }
    commit = None if there is None else there.git_commit
    row = (
        *(run.plan.ladder, run.plan.rung, run.started_at, run.status, run.reason, commit),
        json.dumps(environment),
    )
    metrics = [
        (name, m.value, m.unit, m.provenance, m.low, m.high, m.reason)
        for name, m in run.metrics.items()
    ]
    return row, metrics
