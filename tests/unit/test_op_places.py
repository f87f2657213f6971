"""Ops of steps recorded without places have those of a step that was looked into."""

from __future__ import annotations

import pandas as pd

from tpu_perf.analysis.op_places import with_places


def dispatches(steps: dict[int, list[tuple[str, int]]]) -> pd.DataFrame:
    rows = [
        (100 * step + number, step, op, site)
        for step, ops in steps.items()
        for number, (op, site) in enumerate(ops)
    ]
    return pd.DataFrame(rows, columns=["t_start_ns", "step", "op", "site"])


def sites_of(frame: pd.DataFrame, step: int) -> list[int]:
    return [int(site) for site in frame[frame["step"] == step]["site"]]


def test_a_step_of_the_same_ops_gets_all_places() -> None:
    seen = [("mm", 4), ("add", 5), ("mm", 6)]
    plain = [(op, -1) for op, _ in seen]
    found = with_places("dispatch", dispatches({0: plain, 1: seen, 2: plain}))
    assert sites_of(found, 0) == sites_of(found, 2) == [4, 5, 6]


def test_where_ops_differ_only_those_before_and_after_have_places() -> None:
    seen = [("mm", 4), ("add", 5), ("relu", 6), ("sum", 7)]
    other = [("mm", -1), ("item", -1), ("mul", -1), ("relu", -1), ("sum", -1)]
    found = with_places("dispatch", dispatches({0: other, 1: seen}))
    assert sites_of(found, 0) == [4, -1, -1, 6, 7]


def test_the_step_that_is_most_alike_is_taken() -> None:
    short, long = [("mm", 1), ("add", 2)], [("mm", 3), ("add", 4), ("clip", 5)]
    found = with_places(
        "dispatch", dispatches({0: long, 1: short, 2: [(op, -1) for op, _ in long]})
    )
    assert sites_of(found, 2) == [3, 4, 5]


def test_nothing_is_made_up_where_no_step_has_places() -> None:
    plain = dispatches({0: [("mm", -1)], 1: [("mm", -1)]})
    assert sites_of(with_places("dispatch", plain), 1) == [-1]


def test_events_outside_steps_stay_unknown() -> None:
    frame = dispatches({0: [("mm", 4)], -1: [("mm", -1)]})
    assert sites_of(with_places("dispatch", frame), -1) == [-1]


def test_of_memory_events_only_allocations_are_compared() -> None:
    rows = [
        (0, 0, 64, 3), (1, 0, -64, -1), (2, 0, 128, 4),
        (10, 1, 64, -1), (11, 1, 128, -1), (12, 1, -64, -1),
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["t_ns", "step", "delta_bytes", "site"])
    assert [int(s) for s in with_places("memory", frame)["site"]] == [3, -1, 4, 3, 4, -1]
