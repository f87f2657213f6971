"""Where a stream of ops is cut."""

from __future__ import annotations

import pytest

from tpu_perf.runtime.repeats import MIN_PERIOD, Repeats


def cuts(repeats: Repeats, stream: list[int]) -> list[int]:
    """Lengths of the pieces that the stream is cut into."""
    lengths, count = [], 0
    for op in stream:
        count += 1
        if repeats.see(op):
            lengths.append(count)
            count = 0
    return [*lengths, count]


def step(layers: int, forward: int, backward: int) -> list[int]:
    """Ops of a step: distinct inside a layer, the same in each layer."""
    ahead = list(range(100, 100 + forward))
    back = list(range(300, 300 + backward))
    return [*range(5), *ahead * layers, *range(10, 15), *back * layers, *range(20, 30)]


@pytest.mark.parametrize("layers", [4, 12, 40])
@pytest.mark.parametrize("forward", [24, 29, 60])
def test_a_layer_is_cut_once(layers: int, forward: int) -> None:
    repeats = Repeats()
    for _ in range(4):
        pieces = cuts(repeats, step(layers, forward, forward + 15))
    assert pieces.count(forward) >= layers - 1
    assert pieces.count(forward + 15) >= layers - 1
    assert len(pieces) <= 2 * layers + 1


def test_short_repeats_are_not_cut() -> None:
    repeats = Repeats()
    for _ in range(4):
        assert cuts(repeats, step(6, MIN_PERIOD - 1, MIN_PERIOD - 2)) == [
            5 + 6 * (MIN_PERIOD - 1) + 5 + 6 * (MIN_PERIOD - 2) + 10
        ]


def test_cuts_stay_where_they_were_learned() -> None:
    repeats = Repeats()
    pieces = [cuts(repeats, step(8, 31, 47)) for _ in range(12)]
    assert all(p == pieces[2] for p in pieces[3:])
