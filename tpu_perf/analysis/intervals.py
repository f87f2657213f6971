"""Medians with bootstrap intervals, and what is wrong with a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
RESAMPLES = 4_000
#: Fixed, so that completing a ladder twice gives the same intervals.
SEED = 20_250_801
#: With five values the bootstrap interval of the median is their whole range, which covers the
#: true median in 94 % of cases; with fewer it would claim a confidence it does not have.
MIN_FOR_INTERVAL = 5

Samples = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median; the bounds of its 95 % interval are None where there are too few samples."""

    value: float
    low: float | None
    high: float | None
    samples: int


def median_with_interval(samples: Sequence[float] | Samples) -> Estimate:
    """Median and its percentile-bootstrap 95 % interval, in the unit of the samples."""
    from scipy.stats import bootstrap  # half a second to import, and reading alone needs none

    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("the median of nothing")
    median = float(np.median(values))
    if values.size < MIN_FOR_INTERVAL:
        return Estimate(value=median, low=None, high=None, samples=values.size)
    if np.all(values == values[0]):
        return Estimate(value=median, low=median, high=median, samples=values.size)
    result = bootstrap(
        (values,),
        np.median,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(SEED),
    )
    bounds = result.confidence_interval
    return Estimate(
        value=median, low=float(bounds.low), high=float(bounds.high), samples=values.size
    )


def spread(samples: Samples) -> float:
    """Standard deviation over mean, a fraction; 0 for fewer than two samples."""
    if samples.size < 2 or samples.mean() == 0:
        return 0.0
    return float(samples.std(ddof=1) / samples.mean())


def furthest(samples: Samples) -> float:
    """How far the most extreme sample lies from the median, as a fraction of the median."""
    median = float(np.median(samples)) if samples.size else 0.0
    if median == 0:
        return 0.0
    return float(np.abs(samples - median).max() / median)
