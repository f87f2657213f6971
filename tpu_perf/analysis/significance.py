"""Whether two samples differ by more than noise: independent units, ratio, Mann-Whitney."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from tpu_perf.analysis.intervals import (
    CONFIDENCE,
    MIN_FOR_INTERVAL,
    RESAMPLES,
    SEED,
    Estimate,
    Samples,
    median_with_interval,
)

Tail = Literal["two-sided", "greater", "less"]

#: Below so many values in a row their correlation cannot be estimated, and they count as they are.
MIN_FOR_CORRELATION = 20
#: Two samples at most this large are tested exactly.
EXACT_UP_TO = 30
#: Fewer pairs cannot reach p < 0.05 in a signed-rank test of two tails.
MIN_PAIRS = 6


def correlation_time(series: Samples) -> float:
    """How many consecutive values of a series tell as much as one independent value; at least 1.

    1 + 2 x the sum of the autocorrelations up to the first that is not positive (Geyer's rule,
    on ranks, which spikes do not mislead).
    """
    from scipy.stats import rankdata

    ranks = rankdata(series)
    centred = ranks - ranks.mean()
    power = float(centred @ centred)
    total = 0.0
    for lag in range(1, series.size // 2 if power else 0):
        found = float(centred[:-lag] @ centred[lag:]) / power
        if found <= 0:
            break
        total += found
    return 1 + 2 * total


def independent_units(series: Samples, correlated: float | None = None) -> Samples:
    """The series as values that may count as independent: itself, or medians of consecutive
    blocks long enough that neighbours forget each other.

    `correlated`: the correlation time to assume; by default that of the series.
    """
    if series.size < MIN_FOR_CORRELATION:
        return series
    found = correlation_time(series) if correlated is None else correlated
    length = 1 if found < 1.5 else math.ceil(3 * found)
    whole = series[series.size % length :]  # what does not fill a block is dropped at the start
    return np.asarray(np.median(whole.reshape(-1, length), axis=1), dtype=np.float64)


def unit_pair(base: Samples, new: Samples) -> tuple[Samples, Samples]:
    """Both series as independent units, by the longer correlation time of the two."""
    longer = [correlation_time(s) for s in (base, new) if s.size >= MIN_FOR_CORRELATION]
    time = max(longer, default=None)
    return independent_units(base, time), independent_units(new, time)


@dataclass(frozen=True)
class TwoSamples:
    """Two samples of one positive quantity, in the same unit. `paired`: value i of both was taken
    under the same conditions (rounds sampled interleaved), so ratios are formed one by one."""

    base: Samples
    new: Samples
    paired: bool = False

    def __post_init__(self) -> None:
        if not self.base.size or not self.new.size:
            raise ValueError("a comparison with nothing")
        if self.paired and self.base.size != self.new.size:
            raise ValueError("paired samples of different length")

    @property
    def _tested_in_pairs(self) -> bool:
        """Five pairs can show nothing by themselves; as two samples they may, and pairs that move
        together only make that more cautious."""
        return self.paired and self.base.size >= MIN_PAIRS

    @property
    def method(self) -> str:
        if self._tested_in_pairs:
            return "Wilcoxon signed-rank test of paired rounds"
        return "Mann-Whitney test"

    @cached_property
    def value(self) -> float:
        """new / base: the ratio of medians, or the median of paired ratios."""
        if self.paired:
            return float(np.median(self.new / self.base))
        return float(np.median(self.new) / np.median(self.base))

    @cached_property
    def ratio(self) -> Estimate:
        """`value` with its 95 % percentile-bootstrap interval; without one for fewer than five
        values on either side."""
        from scipy.stats import bootstrap

        smaller = min(self.base.size, self.new.size)
        if self.paired:
            return median_with_interval(self.new / self.base)
        if smaller < MIN_FOR_INTERVAL:
            return Estimate(value=self.value, low=None, high=None, samples=smaller)
        if np.ptp(self.base) == 0 and np.ptp(self.new) == 0:
            return Estimate(value=self.value, low=self.value, high=self.value, samples=smaller)
        bounds = bootstrap(
            (self.new, self.base),
            lambda new, base, axis: np.median(new, axis=axis) / np.median(base, axis=axis),
            confidence_level=CONFIDENCE,
            n_resamples=RESAMPLES,
            method="percentile",
            vectorized=True,
            rng=np.random.default_rng(SEED),
        ).confidence_interval
        return Estimate(
            value=self.value, low=float(bounds.low), high=float(bounds.high), samples=smaller
        )

    @property
    def smallest_p(self) -> float:
        """The smallest one-sided p-value that samples of these sizes can give at all."""
        if self._tested_in_pairs:
            return 0.5**self.base.size
        return 1 / math.comb(self.base.size + self.new.size, self.base.size)

    def can_reach(self, alpha: float, tail: Tail = "two-sided") -> bool:
        """Whether these sizes could show a difference at level `alpha` if there were one."""
        return self.smallest_p * (2 if tail == "two-sided" else 1) <= alpha

    def p_value(self, tail: Tail = "two-sided", beyond: float = 1.0) -> float:
        """How probable a difference at least this large is where there is none; `greater`: where
        new is not the greater, `beyond`: by this factor."""
        from scipy.stats import mannwhitneyu, wilcoxon

        if self._tested_in_pairs:
            logs = np.log(self.new / self.base / beyond)
            if not logs.any():
                return 1.0
            return float(wilcoxon(logs, alternative=tail).pvalue)
        new = self.new / beyond
        both = np.concatenate([self.base, new])
        distinct = np.unique(both).size
        if distinct == 1:
            return 1.0
        small = max(self.base.size, self.new.size) <= EXACT_UP_TO
        method: Literal["exact", "asymptotic"] = (
            "exact" if small and distinct == both.size else "asymptotic"
        )
        return float(mannwhitneyu(new, self.base, alternative=tail, method=method).pvalue)
