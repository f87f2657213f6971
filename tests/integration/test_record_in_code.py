"""tpu_perf.record, tpu_perf.step and tpu_perf.schedule inside a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_perf
from tpu_perf.errors import ConfigError
from tpu_perf.record.store import load_run
from tpu_perf.recorder import active

record: Any = tpu_perf.record


def step_function() -> Any:
    weight = torch.ones(4, 4, device="tpu", requires_grad=True)

    @tpu_perf.step
    def step(scale: float) -> torch.Tensor:
        return (weight * scale).sum()

    return step


def test_marked_steps_are_recorded_and_what_comes_before_is_none(tmp_path: Path) -> None:
    step = step_function()
    with record(tmp_path / "run") as run:
        torch.ones(3, device="tpu")
        for number in range(9):
            step(float(number))
    assert active.recorder is None
    stored = load_run(tmp_path / "run")
    assert run.directory == tmp_path / "run"
    assert stored.run.facts.source["steps"] == "found by tpu_perf.step"
    steps = stored.steps()
    assert len(steps) == 9
    events = stored.events("dispatch")
    counts = events[events["step"].isin(steps["step"][1:])].groupby("step").size()
    assert set(counts) == {2}  # mul and sum


def test_a_step_costs_nothing_to_speak_of_without_a_recording() -> None:
    assert step_function()(2.0).item() == 32.0


def test_nested_marks_are_one_step(tmp_path: Path) -> None:
    step = step_function()
    with record(tmp_path / "run"):
        for _ in range(4):
            with tpu_perf.step():
                step(1.0)
                step(2.0)
    assert len(load_run(tmp_path / "run").steps()) == 4


def test_a_schedule(tmp_path: Path) -> None:
    step = step_function()
    with record(tmp_path / "run", schedule=tpu_perf.schedule(wait=2, warmup=1, active=2)) as run:
        for _ in range(8):
            step(1.0)
    names = list(load_run(run.directory).steps()["phase"])
    assert names == ["wait", "wait", "warmup", "timed", "timed", "probe", "probe", "wait"]


def test_an_error_is_passed_on_and_leaves_a_failed_run(tmp_path: Path) -> None:
    step = step_function()

    def fail() -> None:
        with record(tmp_path / "run"):
            step(1.0)
            step(1 / 0)

    with pytest.raises(ZeroDivisionError):
        fail()
    run = load_run(tmp_path / "run").run
    assert run.status == "failed"
    assert "division by zero" in str(run.reason)
    assert active.recorder is None


def test_a_directory_that_exists_and_a_recording_in_a_recording_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="exists already"), record(tmp_path):
        pass
    first, second = record(tmp_path / "a"), record(tmp_path / "b")
    with first, pytest.raises(ConfigError, match="under way"), second:
        pass
    assert not (tmp_path / "b").exists()


def test_a_ring_keeps_the_newest_events_and_counts_the_rest(tmp_path: Path) -> None:
    step = step_function()
    with record(tmp_path / "run", ring=10) as run:
        for _ in range(30):
            step(1.0)
    stored = load_run(run.directory)
    assert len(stored.events("dispatch")) <= 20  # ten of each recorder
    assert stored.run.facts.dropped_events > 20
