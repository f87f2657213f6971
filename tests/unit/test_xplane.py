"""XPlane: the schema and the event encoder, cutting a run into files, nesting, the check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.stored_captures import PHASES, write_capture
from tpu_perf.errors import ExportMismatch, StoredRunError
from tpu_perf.export.runs.xprof import write
from tpu_perf.export.xplane import verification
from tpu_perf.export.xplane.capture import Capture
from tpu_perf.export.xplane.device_plane import Cost
from tpu_perf.record.store import load_run
from tpu_perf.xplane.event_encoding import Integers, encode_events
from tpu_perf.xplane.nesting import nested_levels
from tpu_perf.xplane.plane_writer import EventColumns, Name, PlaneWriter, Unsigned
from tpu_perf.xplane.schema import XLine, parse_space

LARGEST = 2**63 - 1


def integers(*values: int) -> Integers:
    return np.array(values, dtype=np.int64)


def test_encoder_writes_what_protobuf_writes() -> None:
    """Values at every border between varint lengths, against protobuf's own serialiser."""
    borders = [0, 1, *(2**bits + step for bits in range(7, 63, 7) for step in (-1, 0)), LARGEST]
    plane = PlaneWriter("p", 1)
    for _ in range(200):
        plane.stat_id(f"filler {_}")  # an id of two bytes
    present = np.arange(len(borders)) % 3 != 0
    columns = [
        plane.column("a", "uint64", np.array(borders[::-1])),
        plane.column("b", "int64", np.array(borders), present),
        plane.column("c", "ref", np.array(borders), ~present),
    ]
    values = np.array(borders, dtype=np.int64)
    encoded = encode_events(values, values[::-1].copy(), values, columns)
    line = XLine()
    for index, value in enumerate(borders):
        event = line.events.add(metadata_id=value, offset_ps=borders[-1 - index], duration_ps=value)
        event.stats.add(metadata_id=plane.stat_id("a"), uint64_value=borders[-1 - index])
        if present[index]:
            event.stats.add(metadata_id=plane.stat_id("b"), int64_value=value)
        else:
            event.stats.add(metadata_id=plane.stat_id("c"), ref_value=value)
    found = XLine.FromString(encoded)
    assert len(found.events) == len(borders)
    assert found == line


def test_encoder_refuses_negative_values() -> None:
    with pytest.raises(ValueError, match="negative offset"):
        encode_events(integers(1), integers(-1), integers(0))
    assert encode_events(integers(), integers(), integers()) == b""


def test_plane_keeps_types_of_stats() -> None:
    plane = PlaneWriter("/device:TPU:0", 7)
    plane.add_stats({"peak": 2.0, "count": 3, "id": Unsigned(4), "raw": b"x", "text": "t"})
    kind = plane.event_type("%op", display_name="op", stats={"hlo_category": Name("matmul")})
    plane.add_line(
        1, "XLA Ops", EventColumns(
            type_id=integers(kind), start_ns=integers(5), duration_ns=integers(6)
        )
    )  # fmt: skip
    (found,) = parse_space(plane.to_bytes()).planes
    assert found.name == "/device:TPU:0"
    fields = [stat.WhichOneof("value") for stat in found.stats]
    assert fields == ["double_value", "int64_value", "uint64_value", "bytes_value", "str_value"]
    metadata = found.event_metadata[kind]
    assert (metadata.name, metadata.display_name) == ("%op", "op")
    assert found.stat_metadata[metadata.stats[0].ref_value].name == "matmul"
    assert found.lines[0].events[0].offset_ps == 5_000


@pytest.mark.parametrize("data", [b"\x0a\xff", b"no protobuf at all", b"\x0a\x02\x12\xff"])
def test_schema_refuses_damage(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an XPlane file"):
        parse_space(data)


def test_partly_overlapping_events_get_lines_of_their_own() -> None:
    spans = [(0, 100), (10, 20), (10, 15), (18, 30), (19, 35), (100, 110), (105, 120)]
    starts, ends = (np.array(column) for column in zip(*spans, strict=True))
    levels = nested_levels(starts, ends)
    assert levels.tolist() == [0, 0, 0, 1, 2, 0, 1]


def test_a_long_run_is_cut_between_steps(tmp_path: Path) -> None:
    stored = load_run(write_capture(tmp_path / "run"))
    whole = Capture(stored).parts(10**6)
    assert len(whole) == 1
    assert whole[0].first_step is None
    exported = write(stored, tmp_path / "out", events_per_file=35)
    assert len(exported.files) > 1
    assert any("split by steps" in note for note in exported.notes)
    names = [file.parent.name for file in exported.files]
    assert len(set(names)) == len(names)
    marked, dispatched, memory = [], 0, 0
    for file in exported.files:
        for plane in parse_space(file.read_bytes()).planes:
            if plane.name != "/host:CPU":
                continue
            for event in (event for line in plane.lines for event in line.events):
                name = plane.event_metadata[event.metadata_id].name
                dispatched += name.startswith("aten::")
                memory += name.startswith("Memory")
                if name == "train":
                    marked += [
                        stat.int64_value
                        for stat in event.stats
                        if plane.stat_metadata[stat.metadata_id].name == "step_num"
                    ]
    assert marked == [2, 3, 4, 5, 6]  # each timed and probe step once, in order
    assert dispatched == 3 * len(PHASES)
    assert memory == 1 + 2 * len(PHASES)


def test_every_export_has_a_new_name(tmp_path: Path) -> None:
    stored = load_run(write_capture(tmp_path / "run"))
    files = {write(stored, tmp_path / "out").files[0] for _ in range(3)}
    assert len(files) == 3


def test_what_reads_back_differently_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encoder that loses an event must not leave a file behind."""
    from tpu_perf.xplane import plane_writer

    def lossy(type_id: Any, start: Any, duration: Any, stats: Any) -> bytes:
        return encode_events(type_id[:1], start[:1], duration[:1])

    stored = load_run(write_capture(tmp_path / "run"))
    with monkeypatch.context() as patch:
        patch.setattr(plane_writer, "encode_events", lossy)
        with pytest.raises(ExportMismatch, match="reads back as"):
            write(stored, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.pb*"))


def test_costs_are_compared_too(tmp_path: Path) -> None:
    stored = load_run(write_capture(tmp_path / "run"))
    (file,) = write(stored, tmp_path / "out").files
    (cost,) = verification.read_costs(file).values()
    assert cost.flops == 2 * (1_000_000_000 + 2_000_000)
    assert cost.bytes_accessed == 2 * (4_000_000_000 + 2_000_000_000 + 1_000_000_000)
    lines = verification.read_lines(file)
    verification.verify(file, lines, [cost])
    wrong = Cost(plane=cost.plane, flops=cost.flops + 1, bytes_accessed=0)
    with pytest.raises(ExportMismatch, match="not Cost"):
        verification.verify(file, lines, [wrong])


def test_overlapping_device_events_are_kept_and_said(tmp_path: Path) -> None:
    from tests.stored_captures import step_start

    at = step_start(5) + 25_000_000  # in the middle of dot.1, and beyond its end
    extra = {"device": [(at, at + 12_000_000, 0, "fusion.2", "core 0", 5)]}
    stored = load_run(write_capture(tmp_path / "run", extra=extra))
    exported = write(stored, tmp_path / "out")
    assert any("1 device events of core 0 partly overlap" in note for note in exported.notes)
    lines = {line.line: line for line in verification.read_lines(exported.files[0])}
    assert lines["Async XLA Ops"].events == 1
    assert lines["XLA Ops"].events == 6


def test_a_run_without_events_is_refused(tmp_path: Path) -> None:
    from tests.stored_ladders import Timeline, write_run

    stored = load_run(write_run(tmp_path / "run", Timeline(), programs=()))
    with pytest.raises(StoredRunError, match="holds no events"):
        write(stored, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_lanes_of_a_tpu_are_cores_that_share_its_peak(tmp_path: Path) -> None:
    from tests.stored_captures import step_start

    at = step_start(5)
    extra = {"device": [(at + 5, at + 12_000_005, 1, "fusion.7", "core 1", 5)]}
    run = write_capture(tmp_path / "run", device_kind="TPU v6 lite", extra=extra)
    (file,) = write(load_run(run), tmp_path / "out").files
    planes = {plane.name: plane for plane in parse_space(file.read_bytes()).planes}
    peaks = []
    for name in ("/device:TPU:0", "/device:TPU:1"):
        names = planes[name].stat_metadata
        stats = {names[stat.metadata_id].name: stat for stat in planes[name].stats}
        peaks.append(stats["peak_teraflops_per_second"].double_value)
    assert peaks == [0.05, 0.05]  # together the 100 GFLOP/s of Facts
    (ops,) = (line for line in planes["/device:TPU:1"].lines if line.name == "XLA Ops")
    assert [event.duration_ps for event in ops.events] == [12_000_000_000]
    costs = verification.read_costs(file)
    assert costs["/device:TPU:1"].bytes_accessed == 1_000_000_000


def test_threads_of_a_cpu_that_take_turns_are_one_core(tmp_path: Path) -> None:
    from tests.stored_captures import step_start

    at = step_start(5)
    turn = {"device": [(at + 5, at + 1_000_005, 1, "fusion.7", "thread 9", 5)]}
    clash = {"device": [(at + 15_000_000, at + 16_000_000, 1, "fusion.7", "thread 9", 5)]}
    for extra, planes in ((turn, 1), (clash, 2)):
        stored = load_run(write_capture(tmp_path / f"run{planes}", extra=extra))
        (file,) = write(stored, tmp_path / "out").files
        costs = verification.read_costs(file)
        assert len(costs) == planes
        assert sum(cost.bytes_accessed for cost in costs.values()) == 15_000_000_000
