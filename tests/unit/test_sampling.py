"""When a rung is warm, and that turns are taken fairly."""

from __future__ import annotations

from collections import Counter

from tpu_perf.ladder.sampling import judge_warmth, round_order
from tpu_perf.record.plan import SamplingPlan

PLAN = SamplingPlan(
    rounds=4,
    steps_per_round=5,
    quiet_steps=3,
    max_warmup_steps=20,
    settle_fraction=0.1,
    numerics_steps=5,
    timeout_s=60.0,
)


def test_too_few_steps_are_not_warm() -> None:
    assert not judge_warmth([1.0] * 5, [0] * 5, PLAN).warm
    assert judge_warmth([1.0] * 6, [0] * 6, PLAN).warm


def test_a_recent_compile_is_not_warm_an_old_one_does_not_matter() -> None:
    assert not judge_warmth([1.0] * 8, [0, 0, 0, 0, 0, 1, 0, 0], PLAN).warm
    assert judge_warmth([1.0] * 8, [0, 0, 0, 0, 1, 0, 0, 0], PLAN).warm


def test_a_moving_median_is_not_warm() -> None:
    falling = judge_warmth([2.0, 2.0, 2.0, 1.0, 1.0, 1.0], [0] * 6, PLAN)
    assert not falling.warm
    assert "50.0%" in falling.note
    assert judge_warmth([1.0, 1.05, 1.0, 1.05, 1.05, 1.05], [0] * 6, PLAN).warm


def test_one_slow_step_does_not_unsettle_the_median() -> None:
    assert judge_warmth([1.0, 9.0, 1.0, 1.0, 1.0, 7.0], [0] * 6, PLAN).warm


def test_turns_are_fair_and_none_is_always_first() -> None:
    names = ["a", "b", "c"]
    orders = [round_order(names, index) for index in range(6)]
    assert all(sorted(order) == names for order in orders)
    assert Counter(order[0] for order in orders) == {"a": 2, "b": 2, "c": 2}
    assert round_order([], 3) == []
