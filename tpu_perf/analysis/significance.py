"""Whether two samples differ by more than noise: independent units, ratio, Mann-Whitney."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
#: Steps kept of one unit; more are stood for by as many quantiles.
MOST_IN_UNIT = 64


def correlation_time(series: Samples) -> float:
    """How many consecutive values of a series tell as much as one independent value; at least 1.

    1 + 2 x the sum of the autocorrelations up to the first that is not positive (Geyer's rule,
    on ranks, which spikes do not mislead).
    """
    from scipy.stats import rankdata

    ranks = rankdata(series)
    centred = ranks - ranks.mean()
    power = float(centred @ centred)
    if power == 0:
        return 1.0
    correlations = (
        np.correlate(centred, centred, "full")[series.size : series.size * 3 // 2] / power
    )
    ends = np.flatnonzero(correlations <= 0)
    total = float(correlations[: ends[0] if ends.size else None].sum())
    return 1 + 2 * total


def blocked(units: Sequence[Samples], correlated: float) -> list[Samples]:
    """Consecutive units put together into blocks so long that neighbours forget each other, given
    how many units are worth one; a rest that fills no block is dropped at the start."""
    length = 1 if correlated < 1.5 else math.ceil(3 * correlated)
    first = len(units) % length
    return [np.concatenate(units[i : i + length]) for i in range(first, len(units), length)]


def _medians(units: Sequence[Samples]) -> Samples:
    return np.array([np.median(unit) for unit in units], dtype=np.float64)


def _table(units: Sequence[Samples]) -> Samples:
    """Units as rows of equal length: as many quantiles stand for one of another length."""
    longest = min(MOST_IN_UNIT, max(map(len, units)))
    at = (np.arange(longest) + 0.5) / longest
    rows = [unit if len(unit) == longest else np.quantile(unit, at) for unit in units]
    return np.array(rows, dtype=np.float64)


@dataclass(frozen=True)
class TwoSamples:
    """Two samples of one cost (positive, less is better), each of independent units: one row a
    unit. `paired`: unit i of both was taken under the same conditions (rounds
    sampled in turns), so ratios are formed one by one. `measured`: how many units there were
    before those that resemble their neighbours were put together."""

    base_units: Samples
    new_units: Samples
    paired: bool = False
    measured: tuple[int, int] = (0, 0)

    @classmethod
    def of(
        cls, base: Sequence[Samples] | Samples, new: Sequence[Samples] | Samples, *,
        paired: bool = False,
    ) -> TwoSamples:  # fmt: skip
        """From units in the order of time: rounds with their steps, or single steps. Where a
        series is long enough to tell, units are put together until they are independent."""
        if not len(base) or not len(new):
            raise ValueError("a comparison with nothing")
        sides = [[np.atleast_1d(unit) for unit in side] for side in (base, new)]
        if paired:
            if len(sides[0]) != len(sides[1]):
                raise ValueError("paired samples of different length")
            series = [np.log(_medians(sides[1]) / _medians(sides[0]))]
        else:
            series = [_medians(side) for side in sides]
        times = [correlation_time(s) for s in series if s.size >= MIN_FOR_CORRELATION]
        before, after = (_table(blocked(side, max(times, default=1.0))) for side in sides)
        return cls(before, after, paired, (len(base), len(new)))

    @cached_property
    def base(self) -> Samples:
        """The median of each unit."""
        return np.asarray(np.median(self.base_units, axis=1), dtype=np.float64)

    @cached_property
    def new(self) -> Samples:
        return np.asarray(np.median(self.new_units, axis=1), dtype=np.float64)

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
        """new / base: the ratio of the medians over all steps, or the median of paired ratios."""
        if self.paired:
            return float(np.median(self.new / self.base))
        return float(np.median(self.new_units) / np.median(self.base_units))

    @cached_property
    def ratio(self) -> Estimate:
        """`value` with its 95 % percentile-bootstrap interval over units; without one for fewer
        than five units on either side."""
        smaller = min(self.base.size, self.new.size)
        if self.paired:
            return median_with_interval(self.new / self.base)
        if smaller < MIN_FOR_INTERVAL:
            return Estimate(value=self.value, low=None, high=None, samples=smaller)
        # Whole units are drawn, with the steps in them: steps of one round are no sample each.
        rng = np.random.default_rng(SEED)
        medians = [
            np.median(units[rng.integers(len(units), size=(RESAMPLES, len(units)))], axis=(1, 2))
            for units in (self.new_units, self.base_units)
        ]
        tail = 50 * (1 - CONFIDENCE)
        low, high = np.percentile(medians[0] / medians[1], (tail, 100 - tail))
        return Estimate(value=self.value, low=float(low), high=float(high), samples=smaller)

    @property
    def smallest_p(self) -> float:
        """The smallest one-sided p-value that samples of these sizes can give at all."""
        if self._tested_in_pairs:
            return 0.5**self.base.size
        return 1 / math.comb(self.base.size + self.new.size, self.base.size)

    @property
    def smallest_p_measured(self) -> float:
        """The same, had all that was measured been independent."""
        return 1 / math.comb(sum(self.measured), self.measured[0])

    def can_reach(self, alpha: float, tail: Tail = "two-sided") -> bool:
        """Whether these sizes could show a difference at level `alpha` if there were one."""
        return self.smallest_p * (2 if tail == "two-sided" else 1) <= alpha

    def p_value(self, tail: Tail = "two-sided", beyond: float = 1.0) -> float:
        """How probable a difference at least this large is where there is none; with `beyond`:
        where new is this many times as large."""
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
