"""Every metric against a value worked out by hand from the events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.stored_ladders import (
    FACTS,
    MS,
    PROGRAMS,
    Timeline,
    two_rungs,
    warm_timeline,
    write_ladder_of,
    write_run,
)
from tpu_perf.analysis import numerics
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.record.events import Tier
from tpu_perf.record.metric import METRIC_UNITS, Metric
from tpu_perf.record.run import Facts, Run
from tpu_perf.record.store import load_run


def completed_run(directory: Path, timeline: Timeline, **fields: object) -> Run:
    """Complete a ladder whose only rung is this one, and read it back."""
    write_ladder_of(directory, ["strict"])
    write_run(directory / "rungs/strict", timeline, **fields)  # type: ignore[arg-type]
    complete(directory)
    return load_run(directory / "rungs/strict").run


def test_every_metric_of_a_hand_made_ladder(tmp_path: Path) -> None:
    complete(two_rungs(tmp_path))
    metrics = load_run(tmp_path / "rungs/strict").run.metrics
    assert list(metrics) == list(METRIC_UNITS)
    assert {name: metric.unit for name, metric in metrics.items()} == METRIC_UNITS
    expected = {
        "step_time": 0.1,
        "speedup": 1.0,
        "tokens_per_second": 1_000 / 0.1,
        "mfu": 1e9 / (0.1 * 100e9),
        "model_flops_per_step": 1e9,
        "hbm_peak_bytes": 1_000,
        "hbm_boundary_bytes_per_step": 4 * (1_000 + 500),
        "hbm_accessed_bytes_per_step": 4 * 4_000,
        "first_step_time": 0.5,
        "warmup_time": 0.5 + 0.15 - 2 * 0.1,
        "compile_time": 0.3,
        "compile_count": 2,
        "programs": 1,
        "cache_requests_per_step": 4,
        "cache_hit_rate": 1 - 1 / (14 * 4),  # 14 recorded steps of 4 executions, one compiled
        "host_time_per_step": 0.095,
        "device_time_per_step": 0.020,
        "loss_max_abs_diff": 0.001,
        "grad_norm_max_rel_diff": 0.02 / 2.02,
        "recorder_overhead": 100 / 80 - 1,
    }
    known = {name: metric.value for name, metric in metrics.items() if metric.value is not None}
    assert known == pytest.approx(expected)
    unknown = {metric.reason for metric in metrics.values() if metric.value is None}
    assert unknown == {"this rung runs on one device"}


def test_speedup_is_the_median_of_paired_rounds(tmp_path: Path) -> None:
    """The machine slows down by the round, for both alike: each round says 2, the medians of all
    steps would say 2 too, but only pairing gives an interval of no width."""
    write_ladder_of(tmp_path, ["strict", "fast"])
    for name, factor in (("strict", 2.0), ("fast", 1.0)):
        timeline = Timeline()
        timeline.warm_up()
        for index in range(6):
            timeline.step("timed", index, factor * (50 + 10 * index))
        write_run(tmp_path / "rungs" / name, timeline)
    complete(tmp_path)
    speedup = load_run(tmp_path / "rungs/fast").run.metrics["speedup"]
    assert (speedup.value, speedup.low, speedup.high) == pytest.approx((2, 2, 2))
    step = load_run(tmp_path / "rungs/fast").run.metrics["step_time"]
    assert step.low is not None
    assert step.high is not None
    assert step.low < 0.075 < step.high


def test_rounds_missing_on_one_side_are_not_paired(tmp_path: Path) -> None:
    write_ladder_of(tmp_path, ["strict", "fast"])
    slow, fast = Timeline(), Timeline()
    for index in range(6):
        slow.step("timed", index, 100.0)
    for index in range(4, 8):
        fast.step("timed", index, 50.0 if index < 6 else 1_000.0)
    write_run(tmp_path / "rungs/strict", slow)
    write_run(tmp_path / "rungs/fast", fast)
    complete(tmp_path)
    run = load_run(tmp_path / "rungs/fast").run
    assert run.metrics["speedup"] == Metric(value=2.0, unit="x", provenance="measured")
    assert any(w.startswith("few rounds: the speed-up rests on 2 paired") for w in run.warnings)


def test_late_miss_is_left_out_of_step_time_and_warned_about(tmp_path: Path) -> None:
    timeline = warm_timeline(100.0)
    late = timeline.step("timed", 5, 9_000.0, compiles=1, compile_ms=8_900.0)
    run = completed_run(tmp_path, timeline)
    assert run.metrics["step_time"].high == pytest.approx(0.1)
    (warning,) = [w for w in run.warnings if w.startswith("late compile")]
    assert f"1 of 13 timed steps ({late})" in warning
    assert "what differed: shape" in warning


def test_loads_from_the_directory_tier_are_not_counted_as_compiled(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.step("first", -1, 50.0, compiles=2, compile_ms=10.0, tier=Tier.DIRECTORY)
    timeline.sample(10.0)
    run = completed_run(tmp_path, timeline)
    assert run.metrics["compile_count"].value == 0
    assert run.metrics["compile_time"].value == pytest.approx(0.010)


@pytest.mark.parametrize("unknown", [None, -1.0, float("nan")])
def test_bytes_accessed_is_missing_when_xla_did_not_say(
    tmp_path: Path, unknown: float | None
) -> None:
    timeline = warm_timeline(100.0)
    timeline.events["execute"] = [
        (*event[:2], position % 2, *event[3:])
        for position, event in enumerate(timeline.events["execute"])
    ]
    programs = [PROGRAMS[0], (*PROGRAMS[1][:7], unknown, *PROGRAMS[1][8:])]
    run = completed_run(tmp_path, timeline, programs=programs)
    metric = run.metrics["hbm_accessed_bytes_per_step"]
    assert metric.value is None
    assert metric.reason == (
        "XLA gave no figure for 1 of 2 programs; known for 50% of the executions"
    )
    assert run.metrics["hbm_boundary_bytes_per_step"].value == 2 * 1_500 + 2 * 18_000


def test_mfu_above_one_is_refused(tmp_path: Path) -> None:
    run = completed_run(
        tmp_path, warm_timeline(100.0), facts=replace(FACTS, model_flops_per_step=56.3e9)
    )
    assert run.metrics["mfu"].value is None
    assert "563%" in (run.metrics["mfu"].reason or "")
    assert any(warning.startswith("MFU refused: 563%") for warning in run.warnings)


def test_mfu_of_an_assumed_peak_is_assumed(tmp_path: Path) -> None:
    facts = replace(FACTS, peak_provenance="assumed")
    assert completed_run(tmp_path, warm_timeline(100.0), facts=facts).metrics["mfu"].provenance == (
        "assumed"
    )


def test_what_is_not_known_is_missing_with_a_reason(tmp_path: Path) -> None:
    timeline = warm_timeline(100.0)
    for kind in timeline.events:
        timeline.events[kind] = []
    run = completed_run(tmp_path, timeline, facts=Facts(), programs=(), engine="cpu")
    known = {name for name, metric in run.metrics.items() if metric.value is not None}
    assert known == {
        "step_time",
        "speedup",
        "first_step_time",
        "warmup_time",
        "host_time_per_step",
    }
    assert run.metrics["host_time_per_step"].value == pytest.approx(0.095)  # until dispatched
    assert all(m.reason for m in run.metrics.values() if m.value is None)


def test_overhead_without_bare_steps_is_derived_from_the_cost_per_event(tmp_path: Path) -> None:
    facts = replace(FACTS, recorder_ns_per_event=MS)
    metric = completed_run(tmp_path, warm_timeline(100.0), facts=facts).metrics["recorder_overhead"]
    assert metric.provenance == "derived"
    assert metric.value == pytest.approx(10 / 90)  # 4 dispatches, 4 executes, 2 memory events


def test_overhead_is_not_clamped_at_zero(tmp_path: Path) -> None:
    run = completed_run(tmp_path, warm_timeline(100.0, bare_ms=125.0))
    assert run.metrics["recorder_overhead"].value == pytest.approx(-0.2)


def test_loss_that_is_not_a_number_is_missing_and_warned_about() -> None:
    facts = replace(FACTS, losses=(5.0, float("nan"), 4.0))
    metric = numerics.loss_max_abs_diff(facts)
    assert metric.value is None
    assert "losses of step 1 cannot be compared" in (metric.reason or "")
    assert "loss leaves the CPU reference at step 1" in numerics.outside_tolerance(facts)[0]


def test_numerics_outside_the_tolerance_are_warned_about(tmp_path: Path) -> None:
    facts = replace(FACTS, losses=(5.0, 4.4, 4.0), numerics_tolerance=0.011)
    run = completed_run(tmp_path, warm_timeline(100.0), facts=facts)
    assert [w for w in run.warnings if w.startswith("numerics")] == [
        "numerics: loss leaves the CPU reference at step 1: 4.4 against 4.5, "
        "relative tolerance 0.01"
    ]
