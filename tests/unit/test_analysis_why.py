"""The sentence of why: each class from numbers that mean it, and what changed between rungs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.stored_ladders import (
    FACTS,
    MS,
    Timeline,
    two_rungs,
    warm_timeline,
    write_ladder_of,
    write_run,
)
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.record.events import Tier
from tpu_perf.record.run import Facts
from tpu_perf.record.store import load_run


def lanes(host_ms: float | None, device_ms: float | None, **changes: float | None) -> Facts:
    return replace(
        FACTS,
        host_time_per_step_ns=None if host_ms is None else host_ms * MS,
        device_time_per_step_ns=None if device_ms is None else device_ms * MS,
        **changes,  # type: ignore[arg-type]
    )


def why(directory: Path, name: str = "strict") -> str:
    sentence = load_run(directory / "rungs" / name).run.why
    assert sentence is not None
    return sentence


def alone(directory: Path, timeline: Timeline, facts: Facts) -> str:
    write_ladder_of(directory, ["strict"])
    write_run(directory / "rungs/strict", timeline, facts=facts)
    complete(directory)
    return why(directory)


def test_host_bound_names_ops_programs_and_cost_per_op(tmp_path: Path) -> None:
    sentence = alone(tmp_path, warm_timeline(100.0, ops=20, executes=10), lanes(90, 20))
    assert sentence == (
        "host-bound: the host is busy 90.0 ms and the device 20.0 ms of a 100 ms step, "
        "so the device idles 80%: 20 ops a step through 10 programs, 4.50 ms of host time per op"
    )


@pytest.mark.parametrize(
    ("host_ms", "device_ms", "flops", "starts"),
    [
        (10, 95, 6e9, "compute-bound: "),  # 60 % of 100 GFLOP/s over 0.1 s
        (10, 95, 1e9, "device-bound: "),
        (10, 95, None, "device-bound: "),
        (45, 50, 1e9, "serialised: "),
        (20, 20, 1e9, "unknown: "),
        (90, 95, 1e9, "device-bound: "),
    ],
)
def test_class_from_the_lanes(
    tmp_path: Path, host_ms: float, device_ms: float, flops: float | None, starts: str
) -> None:
    facts = lanes(host_ms, device_ms, model_flops_per_step=flops)
    assert alone(tmp_path, warm_timeline(100.0), facts).startswith(starts)


def test_memory_bound_needs_another_rung_that_moves_less_in_less_time(tmp_path: Path) -> None:
    """Program 1 moves 18,000 bytes, program 0 only 1,500, for the same FLOPs."""
    write_ladder_of(tmp_path, ["strict", "whole_step"])
    heavy = warm_timeline(100.0, ops=1, executes=1)
    heavy.events["execute"] = [(*e[:2], 1, *e[3:]) for e in heavy.events["execute"]]
    write_run(tmp_path / "rungs/strict", heavy, facts=lanes(10, 95))
    lean = warm_timeline(50.0, ops=1, executes=1)
    write_run(tmp_path / "rungs/whole_step", lean, facts=lanes(5, 48))
    complete(tmp_path)
    assert why(tmp_path).startswith("memory-bound: ")
    assert (
        "whole_step does the same FLOPs in 49% less device time with 1.46 KiB instead of 17.6 KiB"
        in why(tmp_path)
    )
    assert why(tmp_path, "whole_step").startswith("device-bound: ")


def test_overhead_per_program_is_not_taken_for_memory_traffic(tmp_path: Path) -> None:
    """As above, but 20 programs of 40 us: what costs may be the programs' number."""
    write_ladder_of(tmp_path, ["strict", "whole_step"])
    many = warm_timeline(1.0, ops=20, op_ms=0.01, executes=20, execute_ms=0.01, fence_ms=0.1)
    write_run(tmp_path / "rungs/strict", many, facts=lanes(0.1, 0.8))
    lean = warm_timeline(0.5, ops=1, op_ms=0.01, executes=1, execute_ms=0.01, fence_ms=0.1)
    write_run(tmp_path / "rungs/whole_step", lean, facts=lanes(0.1, 0.4))
    complete(tmp_path)
    assert "memory-bound" not in why(tmp_path)


def test_compile_bound_when_timed_steps_keep_compiling(tmp_path: Path) -> None:
    timeline = warm_timeline(100.0)
    for index in range(4):
        timeline.step("timed", index, 500.0, compiles=1, compile_ms=400.0)
    sentence = alone(tmp_path, timeline, lanes(90, 20))
    assert sentence == "compile-bound: 25% of the timed steps compiled or loaded a program"


def test_compile_bound_when_start_up_dwarfs_the_steps(tmp_path: Path) -> None:
    timeline = Timeline(ops=1, op_ms=0.1, executes=1, execute_ms=0.1, fence_ms=0.5)
    timeline.warm_up(first_ms=10_002.0, compile_ms=10_000.0)
    timeline.sample(2.0)
    sentence = alone(tmp_path, timeline, lanes(0.2, 1.9))
    # first 10.002 s + warm-up 0.15 s - 2 x 2 ms
    assert sentence.startswith(
        "compile-bound: its 10.1 s of start-up cost as much as 5,074 steps of 2.00 ms; "
        "once warm device-bound"
    )


def test_without_a_device_lane_the_events_decide(tmp_path: Path) -> None:
    """90 of 100 ms are Python and dispatch, 2 ms enqueueing and 8 ms fence; then the reverse."""
    host = warm_timeline(100.0, ops=4, executes=4, execute_ms=0.5, fence_ms=8.0)
    assert alone(tmp_path / "a", host, lanes(None, None)).startswith(
        "host-bound: 90% of a 100 ms step is the host's own work: 4 ops a step"
    )
    device = warm_timeline(100.0, ops=4, executes=4, execute_ms=0.5, fence_ms=80.0)
    assert alone(tmp_path / "b", device, lanes(None, None)).startswith(
        "device-bound: 82% of a 100 ms step is spent in or waiting for XLA"
    )


def test_torch_on_the_cpu_has_one_lane_and_no_events(tmp_path: Path) -> None:
    timeline = warm_timeline(100.0)
    for kind in timeline.events:
        timeline.events[kind] = []
    assert alone(tmp_path, timeline, lanes(None, None)) == (
        "unknown: it reaches 10.0 % of the peak; no events say where the rest goes"
    )


def test_what_changed_from_the_rung_before(tmp_path: Path) -> None:
    write_ladder_of(tmp_path, ["strict", "broken", "whole_step", "debug"])
    write_run(tmp_path / "rungs/strict", warm_timeline(100.0))
    whole = Timeline(ops=1, executes=1)
    whole.warm_up(first_ms=13_000.0, compile_ms=12_300.0)
    whole.sample(40.0)
    write_run(tmp_path / "rungs/whole_step", whole)
    write_run(tmp_path / "rungs/debug", warm_timeline(200.0))
    complete(tmp_path)
    assert why(tmp_path, "whole_step").endswith(
        "; 2.50x faster than strict: programs per step 4 -> 1, "
        "bytes across program boundaries -75%, start-up +12.6 s (repaid after 211 steps)"
    )
    assert why(tmp_path, "debug").endswith(
        "; 5.00x slower than whole_step: programs per step 1 -> 4, "
        "bytes across program boundaries +300%, start-up -12.8 s"
    )


def test_programs_from_the_cache_make_no_break_even(tmp_path: Path) -> None:
    """What loading costs says nothing about what compiling costs."""
    write_ladder_of(tmp_path, ["strict", "whole_step"])
    write_run(tmp_path / "rungs/strict", warm_timeline(100.0))
    loaded = Timeline(ops=1, executes=1)
    loaded.step("first", -1, 900.0, compiles=1, compile_ms=800.0, tier=Tier.DIRECTORY)
    loaded.sample(40.0)
    write_run(tmp_path / "rungs/whole_step", loaded)
    complete(tmp_path)
    assert why(tmp_path, "whole_step").endswith(
        "start-up 860 ms with 100% of its ops loaded from the cache"
    )


def test_a_probe_that_slows_the_host_is_named(tmp_path: Path) -> None:
    sentence = alone(tmp_path, warm_timeline(100.0), lanes(150, 20))
    assert sentence.startswith(
        "host-bound: under the probe the host is busy 150 ms and the device 20.0 ms, "
        "without it a step takes 100 ms, so the device idles 80%"
    )
    assert sentence.endswith("25.0 ms of host time per op")  # 100 ms for 4 ops


def test_no_difference_is_not_called_one(tmp_path: Path) -> None:
    write_ladder_of(tmp_path, ["strict", "other"])
    for name, early in (("strict", 100.0), ("other", 104.0)):
        timeline = Timeline()
        timeline.warm_up()
        for index in range(8):
            timeline.step("timed", index, early if index % 2 else 102.0)
        write_run(tmp_path / "rungs" / name, timeline)
    complete(tmp_path)
    assert why(tmp_path, "other").endswith("as fast as strict within noise")


def test_the_first_rung_is_compared_with_nothing(tmp_path: Path) -> None:
    complete(two_rungs(tmp_path))
    assert ";" not in why(tmp_path, "strict")
    assert "; 2.50x faster than strict" in why(tmp_path, "whole_step")
