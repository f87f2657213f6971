"""Lanes, loops and the host, on programs whose times are known by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tpu_perf.hlo.module import Module, read_module
from tpu_perf.hlo.schema import HloProto
from tpu_perf.predict.instruction_time import Constants, Times
from tpu_perf.predict.prediction import HostEvent, ProgramPrediction, predict_step
from tpu_perf.predict.simulation import Timeline, device_events, simulate
from tpu_perf.predict.targets import find_target

V6E = find_target("v6e-8")
RATE = 0.87 * 1640e9  # bytes/s that the predictor gives HBM copies
LAUNCH = 1.5e-6
F32 = 11


class Builder:
    """Writes an HloProto, instruction by instruction, in scheduled order."""

    def __init__(self) -> None:
        self.proto = HloProto()
        self.module = self.proto.hlo_module
        self.module.name = "hand"
        self._next = 1

    def computation(self, name: str) -> Any:
        return self.module.computations.add(name=name, id=100 + len(self.module.computations))

    def add(
        self, to: Any, name: str, opcode: str, elements: int = 0, operands: tuple[Any, ...] = (),
        space: int = 0, pair: bool = False,
    ) -> Any:  # fmt: skip
        one = to.instructions.add(name=name, opcode=opcode, id=self._next)
        self._next += 1
        one.operand_ids.extend(operand.id for operand in operands)
        shapes = [one.shape]
        if pair:
            one.shape.element_type = 13
            shapes = [one.shape.tuple_shapes.add(), one.shape.tuple_shapes.add()]
        for shape in shapes:
            shape.element_type = F32
            shape.dimensions.append(elements)
            shape.layout.minor_to_major.append(0)
            shape.layout.memory_space = space
        self.module.schedule.sequences[to.id].instruction_ids.append(one.id)
        to.root_id = one.id
        return one

    def read(self, entry: Any) -> Module:
        self.module.entry_computation_id = entry.id
        return read_module(self.proto.SerializeToString())


def _seconds(nbytes: float) -> float:
    return nbytes / RATE + LAUNCH


def test_copies_take_bytes_over_bandwidth_and_a_launch() -> None:
    build = Builder()
    main = build.computation("main")
    source = build.add(main, "p", "parameter", 2**20)
    first = build.add(main, "copy.1", "copy", 2**20, (source,))
    build.add(main, "copy.2", "copy", 2**20, (first,))
    found = simulate(build.read(main), Times(target=V6E), spans=True)
    each = _seconds(2 * 4 * 2**20)
    assert found.seconds == pytest.approx(2 * each)
    assert found.busy_s["hbm"] == pytest.approx(found.seconds)
    assert found.hbm_bytes == 4 * 4 * 2**20
    assert [span.lane for span in found.spans] == ["core", "core"]
    assert found.spans[1].begin_s == pytest.approx(found.spans[0].end_s)


def _with_gather(between: int, done_last: bool) -> Timeline:
    build = Builder()
    main = build.computation("main")
    part = build.add(main, "p", "parameter", 2**20)
    whole = build.add(main, "q", "parameter", between)
    start = build.add(main, "all-gather-start", "all-gather-start", 8 * 2**20, (part,), pair=True)
    if done_last:
        build.add(main, "copy", "copy", between, (whole,))
    done = build.add(main, "all-gather-done", "all-gather-done", 8 * 2**20, (start,))
    if not done_last:
        build.add(main, "copy", "copy", between, (done,))
    return simulate(build.read(main), Times(target=V6E, partitions=8))


def test_communication_is_exposed_only_where_nothing_covers_it() -> None:
    # 2x4 chips: one link along each axis, no ring; 7/8 of the gathered bytes arrive.
    gather = 7 / 8 * 4 * 8 * 2**20 / (2 * 90e9 * 0.655) + 14e-6
    short, long = _with_gather(2**20, done_last=True), _with_gather(2**28, done_last=True)
    serial = _with_gather(2**20, done_last=False)
    copy = _seconds(2 * 4 * 2**20)
    assert short.seconds == pytest.approx(gather)
    assert short.busy_s["ici"] == pytest.approx(gather - copy)
    assert long.busy_s.get("ici", 0.0) == 0.0
    assert long.queue_s["ici"] == pytest.approx(gather)
    assert serial.busy_s["ici"] == pytest.approx(gather)


def _loop(build: Builder, trips: int) -> Any:
    body, condition = build.computation("body"), build.computation("condition")
    element = build.add(body, "carried", "parameter", 2**20)
    build.add(body, "copy.in", "copy", 2**20, (element,))
    build.add(condition, "carried.c", "parameter", 2**20)
    main = build.computation("main")
    source = build.add(main, "p", "parameter", 2**20)
    loop = build.add(main, "while", "while", 2**20, (source,))
    loop.called_computation_ids.extend((body.id, condition.id))
    loop.backend_config = b'{"known_trip_count":{"n":"%d"}}' % trips
    return main


@pytest.mark.parametrize("trips", [0, 1, 3, 500])
def test_a_loop_takes_its_body_times_its_trips(trips: int) -> None:
    build = Builder()
    found = simulate(build.read(_loop(build, trips)), Times(target=V6E), spans=True)
    each = _seconds(2 * 4 * 2**20)
    assert found.seconds == pytest.approx(trips * each)
    assert found.hbm_bytes == trips * 2 * 4 * 2**20
    assert len(found.spans) == trips
    if trips:
        assert found.spans[-1].end_s == pytest.approx(found.seconds)


def test_events_lie_in_the_program_and_on_named_lanes() -> None:
    build = Builder()
    found = simulate(build.read(_loop(build, 20)), Times(target=V6E), spans=True)
    whole, *rows = device_events(found, program=3, step=7, begin_ns=1000)
    assert whole == (1000, 1000 + round(found.seconds * 1e9), 3, "", "module", 7)
    assert len(rows) == 20
    assert all(whole[0] <= row[0] <= row[1] <= whole[1] for row in rows)
    assert {row[4] for row in rows} == {"predicted core"}


def test_constants_change_times_in_the_stated_way() -> None:
    build = Builder()
    main = build.computation("main")
    source = build.add(main, "p", "parameter", 2**20)
    build.add(main, "copy.1", "copy", 2**20, (source,))
    times = Times(target=V6E, constants=Constants(hbm_efficiency=0.5, launch_s=0.0))
    found = simulate(build.read(main), times)
    assert found.seconds == pytest.approx(2 * 4 * 2**20 / (0.5 * 1640e9))


def _programs(seconds: float) -> dict[str, ProgramPrediction]:
    timeline = Timeline(seconds=seconds, busy_s={"mxu": seconds})
    return {
        "a": ProgramPrediction(
            name="a", timeline=timeline, matmul_flops=0.0, peak_hbm_bytes=None, assumptions=()
        )
    }


def test_a_slow_host_bounds_the_step() -> None:
    lane = [HostEvent(host_s=0.010, program="a")] * 3
    found = predict_step(_programs(0.001), lane)
    assert found.seconds == pytest.approx(0.030)
    assert found.bound_by == "host"
    assert found.busy_s["idle"] == pytest.approx(0.027)


def test_a_fast_host_runs_ahead_unless_it_waits() -> None:
    lane = [HostEvent(host_s=0.001, program="a"), HostEvent(host_s=0.001, program="a")]
    assert predict_step(_programs(0.010), lane).seconds == pytest.approx(0.020)
    waiting = [*lane, HostEvent(host_s=0.005), HostEvent(host_s=0.002)]
    found = predict_step(_programs(0.010), waiting)
    assert found.seconds == pytest.approx(0.020 + 0.001 + 0.002)
    assert found.bound_by == "MXU"


def test_a_lane_without_programs_is_refused() -> None:
    with pytest.raises(ValueError, match="enqueues no program"):
        predict_step(_programs(0.1), [HostEvent(host_s=1.0)])
