"""Millions of events: what recording and exporting them takes of memory, and that none is lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.benchmarks.large_runs import MOST_BYTES, in_fresh_process
from tpu_perf.record.store import load_run


def rows_on_disk(directory: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in (directory / "events").iterdir())


@pytest.mark.slow
def test_ten_million_events_fit_into_two_gigabytes(tmp_path: Path) -> None:
    """One round of a job that is never drained between its steps."""
    found = in_fresh_process("record", tmp_path / "run", 10_000_000)
    assert (found["events"], found["dropped"]) == (10_000_000, 0)
    assert rows_on_disk(tmp_path / "run") == 10_000_000
    assert found["peak_bytes"] < MOST_BYTES


@pytest.mark.slow
def test_a_million_events_are_exported_within_two_gigabytes(tmp_path: Path) -> None:
    """Both exporters compare what they wrote with the run, so no event is missing."""
    in_fresh_process("record", tmp_path / "run", 1_000_000)
    assert len(load_run(tmp_path / "run").steps()) == 250
    for format in ("perfetto", "xprof"):
        found = in_fresh_process(format, tmp_path / "run")
        assert found["files"] == 1
        assert found["peak_bytes"] < MOST_BYTES
