"""The benchmarks' statistics on made-up samples, and that the compared models compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.benchmarks import intervals, measuring
from tests.benchmarks.contenders import Spec
from tests.benchmarks.intervals import Ratio
from tests.benchmarks.output import Result, print_table
from tests.benchmarks.rows import ROWS, Pair
from tests.benchmarks.sizes import Size

TINY = Size("tiny", 2, 16, 2, 24, 32, 2, 8)


def test_ratio_of_a_round_compares_medians() -> None:
    assert intervals.round_ratio([10, 20, 900], [10, 10, 40]) == 2.0


def test_interval_covers_the_true_ratio_and_shrinks_with_rounds() -> None:
    random = np.random.default_rng(0)
    few, many = (
        intervals.median_ratio(list(0.8 * np.exp(0.1 * random.standard_normal(rounds))))
        for rounds in (12, 200)
    )
    for ratio in (few, many):
        assert ratio.low <= ratio.value <= ratio.high
        assert ratio.low < 0.8 < ratio.high
    assert many.high - many.low < few.high - few.low


def test_few_rounds_give_their_range() -> None:
    assert intervals.median_ratio([1.0, 3.0, 2.0]) == Ratio(2.0, 1.0, 3.0)
    assert intervals.median_ratio([2.0] * 9) == Ratio(2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="no rounds"):
        intervals.median_ratio([])


@pytest.mark.parametrize(
    ("value", "at_least", "kept"), [(0.7, False, True), (0.71, False, False), (0.71, True, True)]
)
def test_limit_on_either_side(value: float, at_least: bool, kept: bool) -> None:
    ratio = Ratio(value, 0.6, 0.8)
    assert intervals.holds(ratio, 0.7, at_least) is kept
    assert intervals.is_open(ratio, 0.7)


def test_the_worst_pair_counts() -> None:
    ratios = [Ratio(1.0, 1.0, 1.0), Ratio(2.0, 2.0, 2.0)]
    assert intervals.worst(ratios, at_least=False).value == 2.0
    assert intervals.worst(ratios, at_least=True).value == 1.0


class _FakeWorker:
    """A worker whose units take a made-up time; counts how many compute at once."""

    times = {"strict": 300, "defer": 200}  # noqa: RUF012
    values = {"strict": [1.0, 2.0], "defer": [1.0, 2.0]}  # noqa: RUF012

    def __init__(self, spec: Spec, python: Any) -> None:
        self.spec = spec

    def __enter__(self) -> _FakeWorker:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def ready(self) -> dict[str, Any]:
        return {"values": self.values[self.spec.mode], "step_ns": 1e8}

    def run(self, count: int, variant: str) -> list[int]:
        first_is_slow = [10_000]
        return first_is_slow + [self.times[self.spec.mode]] * (count - 1)


PAIR = Pair("made up", Spec("step"), Spec("step", mode="defer"))
EFFORT = measuring.Effort(launches=2, rounds=3)


def test_first_unit_of_a_burst_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "Worker", _FakeWorker)
    measured = measuring.measure(PAIR, None, EFFORT, lambda text: None)  # type: ignore[arg-type]
    assert measured.ratio == Ratio(1.5, 1.5, 1.5)
    assert (measured.first_ns, measured.second_ns) == (300, 200)


@pytest.mark.parametrize("other", [2.001, float("nan")])
def test_different_work_is_not_reported(monkeypatch: pytest.MonkeyPatch, other: float) -> None:
    monkeypatch.setattr(measuring, "Worker", _FakeWorker)
    monkeypatch.setitem(_FakeWorker.values, "defer", [1.0, other])
    with pytest.raises(measuring.DifferentWork):
        measuring.measure(PAIR, None, EFFORT, lambda text: None)  # type: ignore[arg-type]


def test_table_and_document_of_a_row_without_a_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result(ROWS[0], None, None, None, None, "peer not available: no wheel")
    assert result.document()["holds"] is None
    print_table([result], {"cpu": "a processor", "cores": 2})
    assert "no wheel" in capsys.readouterr().out


def test_torch_and_jax_models_give_equal_losses() -> None:
    from tests.benchmarks import jax_model
    from tests.benchmarks.torch_model import TrainingStep

    step = TrainingStep(TINY, "cpu")
    torch_losses = [step(*batch).item() for batch in step.batches]
    state = jax_model.initial_state(TINY)
    jax_losses = []
    for batch in jax_model.device_batches(TINY):
        state, loss = jax_model.train_step(state, *batch)
        jax_losses.append(float(loss))
    np.testing.assert_allclose(jax_losses, torch_losses, atol=1e-5)
