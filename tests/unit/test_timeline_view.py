"""A stretch of the timeline against a nanosecond-by-nanosecond count of the same spans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.large_runs import EVENTS_PER_STEP, GAP_NS, OP_NS, OPS, write_large_run
from tests.stored_captures import FIRST_START, write_capture
from tests.stored_ladders import MS, Timeline, write_run
from tpu_perf.analysis.rung_record import RunTables
from tpu_perf.analysis.timeline_view import LaneView, timeline
from tpu_perf.record.store import load_run


def of_spans(directory: Path, spans: list[tuple[int, int, str]]) -> RunTables:
    """A run whose only events are these dispatches: start and end in ns, name."""
    made = Timeline()
    made.events["dispatch"] = [(start, end, name, -1, 0) for start, end, name in spans]
    return RunTables(load_run(write_run(directory, made)))


def ops(views: tuple[LaneView, ...]) -> LaneView:
    return next(view for view in views if view.kind == "dispatch")


def test_few_spans_are_shown_one_by_one(tmp_path: Path) -> None:
    spans = [(100, 200, "aten::mm"), (120, 150, "aten::t"), (300, 900, "aten::add")]
    line = timeline(of_spans(tmp_path / "run", spans))
    view = ops(line.view(140, 350, columns=10))
    assert view.exact
    found = view.boxes[["start_ns", "end_ns", "label"]].itertuples(index=False, name=None)
    assert list(found) == spans
    assert list(ops(line.view(160, 250, columns=10)).boxes["label"]) == ["aten::mm"]
    assert ops(line.view(210, 290, columns=10)).boxes.empty


def test_many_spans_become_slices_that_cover_what_the_spans_cover(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    starts = np.sort(random.integers(0, 90_000, 4_000))
    spans = [
        (int(start), int(start + random.integers(1, 40)), f"aten::op{start % 3}")
        for start in starts
    ]
    covered = np.zeros(100_000, dtype=bool)
    for start, end, _ in spans:
        covered[start:end] = True
    begin, end, columns = 10_000, 60_000, 50
    view = ops(timeline(of_spans(tmp_path / "run", spans)).view(begin, end, columns))
    assert not view.exact
    assert len(view.boxes) <= columns
    inside = [span for span in spans if span[1] > begin and span[0] < end]
    assert view.spans == view.boxes["events"].sum() == len(inside)
    for box in view.boxes.to_dict("records"):
        low, high = int(box["start_ns"]), int(box["end_ns"])
        assert box["busy"] == pytest.approx(covered[low:high].mean(), abs=1e-6)
        longest: dict[str, int] = {}
        for start, stop, name in inside:
            middle = min(max((start + stop) // 2, begin), end - 1)
            if low <= middle < high:
                longest[name] = longest.get(name, 0) + stop - start
        assert longest[str(box["label"])] == max(longest.values())


def test_long_spans_among_many_short_ones_stay_whole(tmp_path: Path) -> None:
    spans = [(n * 10, n * 10 + 5, "aten::add") for n in range(1_000)] + [(0, 9_999, "aten::mm")]
    view = ops(timeline(of_spans(tmp_path / "run", spans)).view(0, 10_000, columns=20))
    whole = view.boxes[view.boxes["label"] == "aten::mm"]
    assert whole[["start_ns", "end_ns", "events"]].to_numpy().tolist() == [[0, 9_999, 1]]
    assert view.boxes["events"].sum() == 1_001


def test_what_took_the_time_counts_only_the_part_inside(tmp_path: Path) -> None:
    spans = [(0, 100, "aten::mm"), (200, 300, "aten::add"), (300, 340, "aten::add")]
    found = timeline(of_spans(tmp_path / "run", spans)).longest(50, 320, "dispatch")
    rows = found[["label", "events", "total_ns"]].itertuples(index=False, name=None)
    assert list(rows) == [("aten::add", 2, 120), ("aten::mm", 1, 50)]


def test_lanes_of_a_capture(tmp_path: Path) -> None:
    tables = RunTables(load_run(write_capture(tmp_path / "run")))
    line = timeline(tables)
    assert [lane.kind for lane in line.lanes] == [
        *("steps", "annotation", "dispatch", "flush", "execute", "compile"),
        *("transfer", "sync", "device"),
    ]
    assert line.begin_ns == FIRST_START
    views = {view.kind: view for view in line.view(FIRST_START, FIRST_START + 100 * MS, 100)}
    assert list(views["execute"].boxes["label"]) == [
        "0 forward_backward (compiled)", "1 adamw (compiled)",
    ]  # fmt: skip
    assert views["device"].boxes.empty  # only probe steps have device events


def test_a_run_without_events_has_no_lanes(tmp_path: Path) -> None:
    line = timeline(RunTables(load_run(write_run(tmp_path / "run", Timeline()))))
    assert line.lanes == ()
    assert line.view(0, 1, 10) == ()


def test_boxes_do_not_grow_with_events(tmp_path: Path) -> None:
    stored = load_run(write_large_run(tmp_path / "run", 20 * EVENTS_PER_STEP))
    line = timeline(RunTables(stored))
    whole = ops(line.view(line.begin_ns, line.end_ns, 300))
    assert whole.spans == 20 * OPS
    assert len(whole.boxes) <= 300
    # Within a step an op covers OP_NS of every OP_NS + GAP_NS.
    step = ops(line.view(line.begin_ns, line.begin_ns + 400 * (OP_NS + GAP_NS), 40))
    assert step.boxes["busy"].mean() == pytest.approx(OP_NS / (OP_NS + GAP_NS), rel=1e-3)
