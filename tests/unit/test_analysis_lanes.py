"""Where a step's time went: every instant once, to the innermost event."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.stored_ladders import MS, Timeline, warm_timeline, write_run
from tpu_perf.analysis.device_memory import live_in_step, typical_step
from tpu_perf.analysis.lanes import NESTING, Spans, breakdown, exclusive, union_length
from tpu_perf.analysis.rung_record import RunTables
from tpu_perf.record.store import load_run


def tables_of(directory: Path, timeline: Timeline) -> RunTables:
    return RunTables(load_run(write_run(directory / "run", timeline)))


def spans(*rows: tuple[int, int]) -> Spans:
    return np.asarray(rows, dtype=np.int64).reshape(-1, 2)


@pytest.mark.parametrize(
    ("rows", "length"),
    [
        ([], 0),
        ([(0, 10)], 10),
        ([(0, 10), (2, 5)], 10),
        ([(0, 10), (10, 12)], 12),
        ([(20, 30), (0, 10), (5, 25)], 30),
        ([(0, 1), (5, 6)], 2),
    ],
)
def test_union_length(rows: list[tuple[int, int]], length: int) -> None:
    assert union_length(rows) == length


def test_nested_time_belongs_to_the_innermost() -> None:
    """A dispatch of 100 holds a flush of 80, which holds an execute of 50 with a compile of 20."""
    inside = {kind: spans() for kind in NESTING}
    inside |= {
        "dispatch": spans((0, 100)),
        "flush": spans((10, 90)),
        "execute": spans((20, 70)),
        "compile": spans((20, 40)),
    }
    own = {kind: length for kind, length in exclusive(inside).items() if length}
    assert own == {"compile": 20, "execute": 30, "flush": 30, "dispatch": 20}


def test_parts_add_up_to_the_step(tmp_path: Path) -> None:
    timeline = warm_timeline(100.0, ops=10, op_ms=0.9, executes=10, execute_ms=0.4, fence_ms=30.0)
    parts = breakdown(tables_of(tmp_path, timeline))
    assert parts is not None
    assert parts.total_s == pytest.approx(0.100)
    shown = {name: value for name, value in parts.parts.items() if value}
    assert shown == pytest.approx(
        {"python": 0.061, "dispatch": 0.005, "execute": 0.004, "fence": 0.030}
    )
    assert parts.share("dispatch", "execute") == pytest.approx(0.09)


def test_waits_after_the_last_op_are_the_fence_and_not_counted_twice(tmp_path: Path) -> None:
    timeline = Timeline(ops=0, executes=1, fence_ms=60.0)
    step = timeline.step("timed", 0, 100.0)
    start = timeline.steps[step][3]
    timeline.events["execute"] = [(start, start + 10 * MS, 0, 0, step)]
    timeline.events["sync"] = [
        (start + 20 * MS, start + 30 * MS, "item()", step),
        (start + 35 * MS, start + 95 * MS, "synchronize()", step),
    ]
    parts = breakdown(tables_of(tmp_path, timeline))
    assert parts is not None
    shown = {name: value for name, value in parts.parts.items() if value}
    assert shown == pytest.approx({"execute": 0.010, "sync": 0.015, "python": 0.015, "fence": 0.06})


def test_without_programs_there_is_no_breakdown(tmp_path: Path) -> None:
    timeline = warm_timeline(100.0)
    timeline.events["execute"] = []
    assert breakdown(tables_of(tmp_path, timeline)) is None


def test_memory_within_the_typical_step(tmp_path: Path) -> None:
    timeline = Timeline(live_bytes=500)
    for index, step_ms in enumerate((90.0, 100.0, 130.0)):
        timeline.step("timed", index, step_ms)
    tables = tables_of(tmp_path, timeline)
    assert typical_step(tables) == 1
    live = live_in_step(tables, 1)
    assert live["t_s"].tolist() == pytest.approx([0.0, 0.0, 0.001, 0.1])
    assert live["live_bytes"].tolist() == [0, 500, 0, 0]
