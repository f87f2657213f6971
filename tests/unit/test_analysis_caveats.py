"""Each warning appears when its cause is there, and only then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.stored_ladders import (
    ENVIRONMENT,
    FACTS,
    MS,
    Timeline,
    plan,
    two_rungs,
    warm_timeline,
    write_ladder_of,
    write_run,
)
from tpu_perf.analysis.caveats import TOPICS
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.record.run import Run
from tpu_perf.record.store import load_run


def warnings_about(run: Run, topic: str) -> list[str]:
    assert topic in TOPICS
    return [warning for warning in run.warnings if warning.startswith(f"{topic}: ")]


def one_rung(directory: Path, timeline: Timeline, **fields: object) -> Run:
    write_ladder_of(directory, ["strict"])
    write_run(directory / "rungs/strict", timeline, **fields)  # type: ignore[arg-type]
    complete(directory)
    return load_run(directory / "rungs/strict").run


def rung_against_strict(directory: Path, timeline: Timeline, **fields: object) -> Run:
    write_ladder_of(directory, ["strict", "other"])
    write_run(directory / "rungs/strict", warm_timeline(100.0))
    write_run(directory / "rungs/other", timeline, **fields)  # type: ignore[arg-type]
    complete(directory)
    return load_run(directory / "rungs/other").run


def test_a_steady_ladder_has_no_warnings(tmp_path: Path) -> None:
    complete(two_rungs(tmp_path))
    for name in ("strict", "whole_step"):
        assert load_run(tmp_path / "rungs" / name).run.warnings == ()


def test_unstable_samples(tmp_path: Path) -> None:
    timeline = Timeline()
    for index in range(12):
        timeline.step("timed", index, 100.0 if index else 300.0)
    (warning,) = warnings_about(one_rung(tmp_path, timeline), "unstable samples")
    # mean 116.67 ms, standard deviation 57.7 ms; the slow one lies 200 % off the median
    assert "standard deviation 49% of the mean (limit 10%)" in warning
    assert "most extreme step 200% off the median (limit 50%)" in warning


def test_few_samples(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.sample(100.0, rounds=2)
    run = one_rung(tmp_path, timeline)
    assert "4 timed steps" in warnings_about(run, "few samples")[0]
    assert run.metrics["step_time"].low is None


def test_host_fallbacks_are_listed_with_their_counts(tmp_path: Path) -> None:
    timeline = warm_timeline(100.0)
    timeline.events["fallback"] = [
        (0, 1, "aten::unique", 3),
        (2, 3, "aten::unique", 4),
        (4, 5, "aten::svd", 4),
    ]
    assert warnings_about(one_rung(tmp_path, timeline), "host fallback") == [
        "host fallback: torch computed these ops on the host: aten::unique x2, aten::svd x1"
    ]


def test_dropped_events(tmp_path: Path) -> None:
    run = one_rung(tmp_path, warm_timeline(100.0), facts=replace(FACTS, dropped_events=1_234))
    assert "1,234 events were not kept" in warnings_about(run, "dropped events")[0]


@pytest.mark.parametrize(("device_ms", "warned"), [(900, True), (110, False)])
def test_step_shorter_than_its_device_work(tmp_path: Path, device_ms: int, warned: bool) -> None:
    facts = replace(FACTS, device_time_per_step_ns=device_ms * MS)
    run = one_rung(tmp_path, warm_timeline(100.0), facts=facts)
    assert bool(warnings_about(run, "fence")) is warned


def test_a_rung_that_loses_is_shown_as_a_loss(tmp_path: Path) -> None:
    run = rung_against_strict(tmp_path, warm_timeline(200.0))
    assert warnings_about(run, "slower than baseline") == [
        "slower than baseline: 0.50x the speed of strict"
    ]


def test_a_compile_that_is_never_repaid(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.warm_up(first_ms=9_000.0, compile_ms=8_300.0)
    timeline.sample(100.0)
    run = rung_against_strict(tmp_path, timeline)
    assert (
        "start-up takes 8.50 s longer than that of strict"
        in warnings_about(run, "never breaks even")[0]
    )


def test_rungs_from_unlike_environments(tmp_path: Path) -> None:
    environment = replace(ENVIRONMENT, cores=8, versions={"torch": "2.13.1", "jax": "0.10.2"})
    run = rung_against_strict(
        tmp_path,
        warm_timeline(100.0),
        run=Run(plan=plan("other"), environment=environment, status="ok", facts=FACTS),
    )
    (warning,) = warnings_about(run, "environment")
    assert "cores 8 against 2; torch 2.13.1 against 2.13.0" in warning


def test_completing_again_changes_nothing_and_keeps_the_workers_warnings(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.sample(100.0, rounds=2)
    run = Run(
        plan=plan("strict"),
        environment=ENVIRONMENT,
        status="ok",
        facts=FACTS,
        warnings=("AdamW was made capturable",),
    )
    once = one_rung(tmp_path, timeline, run=run)
    path = tmp_path / "rungs/strict/run.json"
    before = path.read_bytes()
    complete(tmp_path)
    assert path.read_bytes() == before
    assert once.warnings[0] == "AdamW was made capturable"
    assert len(once.warnings) == 2


def test_stale_warnings_go_when_their_cause_is_gone(tmp_path: Path) -> None:
    slow = rung_against_strict(tmp_path, warm_timeline(200.0))
    assert warnings_about(slow, "slower than baseline")
    write_run(tmp_path / "rungs/strict", warm_timeline(400.0))
    complete(tmp_path)
    now = load_run(tmp_path / "rungs/other").run
    assert now.metrics["speedup"].value == pytest.approx(2.0)
    assert warnings_about(now, "slower than baseline") == []
