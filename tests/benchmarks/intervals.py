"""Ratios of paired rounds, their 95 % interval, and whether a limit holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpu_perf.analysis.intervals import median_with_interval


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median of per-round ratios, with the bounds of its interval."""

    value: float
    low: float
    high: float


def round_ratio(first: Sequence[int], second: Sequence[int]) -> float:
    """The medians' ratio of what two contenders took in one round."""
    return float(np.median(first) / np.median(second))


def median_ratio(ratios: Sequence[float]) -> Ratio:
    """Median of the rounds' ratios and its percentile-bootstrap interval.

    Rounds are the unit because drift hits both contenders of a round alike, and steps of one
    burst are not independent.
    """
    if not ratios:
        raise ValueError("no rounds")
    found = median_with_interval(ratios)
    if found.low is None or found.high is None:  # too few rounds: their whole range
        return Ratio(found.value, min(ratios), max(ratios))
    return Ratio(found.value, found.low, found.high)


def holds(ratio: Ratio, limit: float, at_least: bool) -> bool:
    """Whether the median keeps the limit."""
    return ratio.value >= limit if at_least else ratio.value <= limit


def is_open(ratio: Ratio, limit: float) -> bool:
    """Whether the interval contains the limit, so that another run may answer differently."""
    return ratio.low < limit < ratio.high


def worst(ratios: Sequence[Ratio], at_least: bool) -> Ratio:
    """The ratio that is furthest on the wrong side."""
    return (min if at_least else max)(ratios, key=lambda ratio: ratio.value)


def combined(ratios: Sequence[Ratio], how: str, at_least: bool = False) -> Ratio:
    """The ratio of a row of several pairs: the worst, the median or the geometric mean of them,
    with its bounds taken the same way. Raises ValueError for another word."""
    if how == "worst":
        return worst(ratios, at_least)
    sides = [[getattr(r, side) for r in ratios] for side in ("value", "low", "high")]
    if how == "median":
        return Ratio(*(float(np.median(side)) for side in sides))
    if how == "geometric_mean":
        return Ratio(*(float(np.exp(np.mean(np.log(side)))) for side in sides))
    raise ValueError(f"no way to combine ratios is called {how!r}")


def median_difference(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Median of paired differences, first less second, with its interval."""
    return median_ratio([a - b for a, b in pairs])
