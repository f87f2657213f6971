"""Ratios of paired rounds, their 95 % interval, and whether a limit holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 4_000
#: Fixed, so that the same samples give the same interval.
SEED = 20_250_802
#: With fewer rounds the interval is their whole range.
MIN_FOR_BOOTSTRAP = 5


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
    from scipy.stats import bootstrap

    values = np.asarray(ratios, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no rounds")
    median, low, high = (float(f(values)) for f in (np.median, np.min, np.max))
    if values.size < MIN_FOR_BOOTSTRAP or low == high:
        return Ratio(median, low, high)
    bounds = bootstrap(
        (values,),
        np.median,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Ratio(median, float(bounds.low), float(bounds.high))


def holds(ratio: Ratio, limit: float, at_least: bool) -> bool:
    """Whether the median keeps the limit."""
    return ratio.value >= limit if at_least else ratio.value <= limit


def is_open(ratio: Ratio, limit: float) -> bool:
    """Whether the interval contains the limit, so that another run may answer differently."""
    return ratio.low < limit < ratio.high


def worst(ratios: Sequence[Ratio], at_least: bool) -> Ratio:
    """The ratio that is furthest on the wrong side."""
    return (min if at_least else max)(ratios, key=lambda ratio: ratio.value)
