"""The Perfetto trace of a run, read back byte by byte by a parser that shares nothing with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import perfetto_wire
from tests.stored_runs import ORIGIN, STEP_US, US, detailed_rows, write_detailed_run
from tpu_perf.errors import ExportMismatch
from tpu_perf.export.perfetto import timeline
from tpu_perf.export.perfetto.nesting import place
from tpu_perf.export.perfetto.reopening import reopen
from tpu_perf.export.runs import perfetto
from tpu_perf.record.events import EVENT_KINDS
from tpu_perf.record.store import load_run


def trace_of(directory: Path) -> perfetto_wire.Trace:
    stored = write_detailed_run(directory / "run")
    (path,) = perfetto.write(stored, directory / "out").files
    return perfetto_wire.read(path)


def test_every_event_is_there_with_its_times(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    for kind, rows in detailed_rows().items():
        if kind != "memory" and kind != "lookup":
            expected = sorted((row[0] - ORIGIN, row[1] - ORIGIN) for row in rows)
            assert sorted((s.start, s.end) for s in trace.named(kind)) == expected, kind
    steps = trace.named("step")
    assert [(s.name, s.start, s.end) for s in steps] == [
        ("step 0 (first)", 0, 900 * US),
        ("step 1 (timed)", 1_000 * US, 1_900 * US),
        ("step 2 (probe)", 2_000 * US, 2_900 * US),
    ]


def test_lanes(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    lanes = {(s.category, s.group, s.track) for s in trace.slices}
    assert lanes == {
        ("step", "host threads", "steps"),
        ("annotation", "host threads", "thread 0"),
        ("module", "host threads", "thread 0"),
        ("dispatch", "host threads", "thread 0"),
        *((kind, "dispatch", kind) for kind in ("execute", "compile", "flush", "transfer", "sync")),
        ("program", "device", "TPU core 0"),
        ("device", "device", "TPU core 0"),
    }


def test_modules_are_nested_slices_around_consecutive_ops(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    first_mm, second_mm = trace.named("dispatch", "aten::mm")[:2]
    path = ("my block", "forward", "model", "layers", "3", "mlp")
    assert first_mm.parents == path
    assert second_mm.parents == path
    softmax = trace.named("dispatch", "aten::softmax")[0]
    assert softmax.parents == ("my block", "forward", "model", "layers", "3", "attn")
    layers = [s for s in trace.named("module", "layers") if s.start < 250 * US]
    assert [(s.start, s.end) for s in layers] == [(100 * US, 250 * US)]
    mlp = trace.named("module", "mlp")[0]
    assert (mlp.start, mlp.end) == (100 * US, 200 * US)
    assert mlp.args == {"module": "model.layers.3.mlp", "phase": "forward"}
    inner = trace.named("dispatch", "aten::t")[0]
    assert inner.parents == ("backward", "model", "layers", "3", "mlp", "aten::mm")
    assert trace.named("dispatch", "aten::add_")[0].parents == ("optimizer",)


def test_arguments_of_an_op(tmp_path: Path) -> None:
    op = trace_of(tmp_path).named("dispatch", "aten::mm")[0]
    assert op.args == {
        "line": "model.py:11",
        "module": "model.layers.3.mlp",
        "phase": "forward",
        "program": "mm",
        "shapes": "float32[4, 8], float32[8, 2]",
    }


def test_counters(tmp_path: Path) -> None:
    counters = trace_of(tmp_path).counters
    live = counters["live device bytes"]
    assert [value for _, value in live] == [1_700, 2_000, 1_700, 1_000] * 3
    assert live[0][0] == 100 * US
    misses = counters["program cache misses"]
    assert misses == [(105 * US, 1), (505 * US, 2)]
    # A step runs mm (2 MFLOP) three times and update (1 MFLOP) once, in 900 us.
    flops = [value for _, value in counters["FLOP/s"]]
    assert flops == pytest.approx([7e6 / 900e-6] * 3)


def test_arrows_go_from_the_nth_enqueue_to_the_nth_span_of_a_program(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    starts = {arrow: s for s in trace.named("execute") for arrow in s.leaving}
    ends = {arrow: s for s in trace.named("program") for arrow in s.arriving}
    assert starts.keys() == ends.keys()
    pairs = sorted((starts[n].start, ends[n].start, ends[n].name) for n in starts)
    step = 2 * STEP_US
    assert pairs == [
        ((step + 105) * US, (step + 130) * US, "mm"),
        ((step + 155) * US, (step + 180) * US, "mm"),
        ((step + 305) * US, (step + 350) * US, "mm"),
        ((step + 505) * US, (step + 540) * US, "update"),
    ]


def test_no_arrows_where_the_counts_differ(tmp_path: Path) -> None:
    rows = detailed_rows()
    rows["device"] = [row for row in rows["device"] if row[0] - ORIGIN < (2_000 + 300) * US]
    stored = write_detailed_run(tmp_path / "run", rows)
    made = perfetto.write(stored, tmp_path / "out")
    trace = perfetto_wire.read(made.files[0])
    assert len(trace.named("program")) == 2
    assert not any(s.leaving for s in trace.slices)
    assert any("2 of 2 device spans have no arrow" in note for note in made.notes)


def test_without_device_events_the_lane_says_so(tmp_path: Path) -> None:
    rows = detailed_rows()
    rows["device"] = []
    made = perfetto.write(write_detailed_run(tmp_path / "run", rows), tmp_path / "out")
    trace = perfetto_wire.read(made.files[0])
    spans = trace.named("program")
    assert [(s.start, s.end) for s in spans] == [(s.start, s.end) for s in trace.named("execute")]
    assert {"no device events" in s.track for s in spans} == {True}


def test_reported_programs_enclose_their_instructions(tmp_path: Path) -> None:
    rows = detailed_rows()
    begin = ORIGIN + 2 * STEP_US * US
    for start, program in ((130, 0), (180, 0), (350, 0), (540, 1)):
        span = (begin + start * US, begin + (start + 25) * US)
        rows["device"].append((*span, program, "jit_mm", "module", 2))
    made = perfetto.write(write_detailed_run(tmp_path / "run", rows), tmp_path / "out")
    trace = perfetto_wire.read(made.files[0])
    assert len(trace.named("device")) == 12
    assert [s.parents for s in trace.named("device", "dot.2")] == [("mm",)] * 3 + [("update",)]
    assert sum(len(s.arriving) for s in trace.slices) == 4


def test_overlapping_slices_get_a_track_beside_and_are_counted(tmp_path: Path) -> None:
    rows = detailed_rows()
    at = ORIGIN + 120 * US
    rows["dispatch"].append((at, at + 60 * US, "aten::overlaps", -1, 0, -1, 0))
    made = perfetto.write(write_detailed_run(tmp_path / "run", rows), tmp_path / "out")
    (moved,) = perfetto_wire.read(made.files[0]).named("dispatch", "aten::overlaps")
    assert (moved.start, moved.end) == (120 * US, 180 * US)  # whole, not clipped
    assert moved.track == "thread 0 (overlapping 1)"
    assert any("1 slices of 'thread 0' overlap" in note for note in made.notes)


def test_place_never_lets_two_slices_of_a_lane_cross() -> None:
    random = np.random.default_rng(0)
    start = random.integers(0, 200, 400)
    end = start + random.integers(0, 30, 400)
    order, lanes = place(start, end)
    assert sorted(order.tolist()) == list(range(400))
    for lane in range(int(lanes.max()) + 1):
        chosen = order[lanes == lane]
        for a in chosen:
            for b in chosen:
                crossing = start[a] < start[b] < end[a] < end[b]
                assert not crossing


def test_an_event_that_ends_before_it_begins_is_refused(tmp_path: Path) -> None:
    rows = detailed_rows()
    rows["sync"].append((ORIGIN + 100, ORIGIN + 50, "bad", 0))
    with pytest.raises(ExportMismatch, match="ends 50 ns before it begins"):
        perfetto.write(write_detailed_run(tmp_path / "run", rows), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_large_runs_are_split_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = write_detailed_run(tmp_path / "run")
    monkeypatch.setattr(timeline, "EVENTS_PER_FILE", 25)
    original = timeline.parts.__defaults__
    monkeypatch.setattr(timeline.parts, "__defaults__", (25,))
    assert original == (1_000_000,)
    made = perfetto.write(stored, tmp_path / "out")
    assert [path.name for path in made.files] == [
        "trace-steps-0-0.pftrace",
        "trace-steps-1-1.pftrace",
        "trace-steps-2-2.pftrace",
    ]
    assert "split by step into 3" in made.notes[0]
    traces = [perfetto_wire.read(path) for path in made.files]
    assert [trace.named("step")[0].start for trace in traces] == [0, 1_000 * US, 2_000 * US]
    count = sum(len(trace.named("dispatch")) for trace in traces)
    assert count == len(detailed_rows()["dispatch"])
    assert [len(t.counters.get("program cache misses", [])) for t in traces] == [2, 0, 0]


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_cut_file_is_noticed(tmp_path: Path, kept: float) -> None:
    (path,) = perfetto.write(write_detailed_run(tmp_path / "run"), tmp_path / "out").files
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(ExportMismatch):
        reopen(path)


def test_a_trace_of_other_events_is_a_mismatch(tmp_path: Path) -> None:
    """What is written is compared with the run's tables, not with what the encoder was given."""
    stored = write_detailed_run(tmp_path / "run")
    (path,) = perfetto.write(stored, tmp_path / "out").files
    rows = detailed_rows()
    rows["sync"].pop()
    other = write_detailed_run(tmp_path / "other", rows)
    tables = {kind: other.events(kind) for kind in EVENT_KINDS}
    (part,) = timeline.parts(other, tables, other.steps())
    with pytest.raises(ExportMismatch, match="sync"):
        perfetto.verify(part, ORIGIN, reopen(path))


def test_a_run_without_anything_is_refused(tmp_path: Path) -> None:
    stored = write_detailed_run(tmp_path / "run", {})
    (tmp_path / "run" / "steps.parquet").unlink()
    with pytest.raises(ExportMismatch, match="no events"):
        perfetto.write(load_run(stored.directory), tmp_path / "out")
