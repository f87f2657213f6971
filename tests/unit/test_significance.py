"""Units, ratios and tests of two samples, against theory and against scipy used directly."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import mannwhitneyu, wilcoxon

from tpu_perf.analysis.intervals import Samples
from tpu_perf.analysis.significance import TwoSamples, blocked, correlation_time


def series(phi: float, size: int, seed: int = 0) -> Samples:
    noise = np.random.default_rng(seed).normal(size=size)
    return np.asarray(lfilter([1.0], [1.0, -phi], noise), dtype=np.float64)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8, 0.95])
def test_the_correlation_time_of_an_autoregressive_series_is_what_theory_says(phi: float) -> None:
    assert correlation_time(series(phi, 20_000)) == pytest.approx((1 + phi) / (1 - phi), rel=0.15)


def test_a_constant_series_has_no_correlation_to_estimate() -> None:
    assert correlation_time(np.full(50, 3.0)) == 1


def test_blocks_keep_the_order_and_drop_a_rest_at_the_start() -> None:
    units = [np.array([float(i)]) for i in range(10)]
    assert [list(block) for block in blocked(units, 1.0)] == [[float(i)] for i in range(10)]
    assert [list(block) for block in blocked(units, 1.6)] == [
        [0.0, 1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0, 9.0],
    ]  # fmt: skip
    assert [len(block) for block in blocked(units[:9], 1.6)] == [5]


def test_steps_that_remember_each_other_count_as_few() -> None:
    steps = np.exp(0.05 * series(0.9, 400, seed=1))
    samples = TwoSamples.of(steps, np.exp(0.05 * series(0.0, 400, seed=2)))
    assert samples.measured == (400, 400)
    assert samples.base.size < 20
    independent = np.exp(0.05 * series(0.0, 400, seed=3))
    assert TwoSamples.of(independent, independent[::-1]).base.size > 100


def test_the_change_is_the_ratio_of_the_medians_of_all_steps() -> None:
    rng = np.random.default_rng(5)
    base = [rng.lognormal(0, 0.1, 5) for _ in range(8)]
    new = [1.2 * rng.lognormal(0, 0.1, 5) for _ in range(8)]
    samples = TwoSamples.of(base, new)
    expected = np.median(np.concatenate(new)) / np.median(np.concatenate(base))
    assert samples.ratio.value == pytest.approx(expected)
    assert samples.ratio.low is not None
    assert samples.ratio.high is not None
    assert samples.ratio.low < expected < samples.ratio.high


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(11)
    inside = 0
    for _ in range(200):
        sides = [[rng.lognormal(0, 0.05, 5) * rng.lognormal(0, 0.05) for _ in range(12)]
                 for _ in range(2)]  # fmt: skip
        ratio = TwoSamples.of(*sides).ratio
        inside += bool(ratio.low is not None and ratio.low <= 1 <= (ratio.high or 0))
    assert 0.88 <= inside / 200 <= 0.99


def test_p_values_are_scipys() -> None:
    rng = np.random.default_rng(2)
    base, new = rng.lognormal(0, 0.1, 9), rng.lognormal(0.1, 0.1, 9)
    assert TwoSamples.of(base, new).p_value() == mannwhitneyu(new, base, method="exact").pvalue
    shifted = mannwhitneyu(new / 1.05, base, alternative="greater", method="exact").pvalue
    assert TwoSamples.of(base, new).p_value("greater", beyond=1.05) == shifted
    paired = TwoSamples.of(base, new, paired=True)
    assert paired.p_value() == pytest.approx(wilcoxon(np.log(new / base)).pvalue)


def test_sizes_that_cannot_show_anything_know_it() -> None:
    four, five = np.arange(1.0, 5.0), np.arange(1.0, 6.0)
    assert TwoSamples.of(four, four + 10).smallest_p == pytest.approx(1 / 70)
    assert not TwoSamples.of(four, four + 10).can_reach(0.01, "greater")
    assert TwoSamples.of(five, five + 10).can_reach(0.01, "greater")
    assert TwoSamples.of(five, five + 10).p_value("greater") == pytest.approx(1 / 252)
    with pytest.raises(ValueError, match="nothing"):
        TwoSamples.of(five, five[:0])
    with pytest.raises(ValueError, match="different length"):
        TwoSamples.of(five, four, paired=True)


def test_rounds_of_unlike_length_are_no_trouble() -> None:
    base = [np.array([1.0, 2.0, 3.0]), np.array([2.0]), np.arange(200.0) + 1]
    assert TwoSamples.of(base, base).base == pytest.approx([2.0, 2.0, 100.5], rel=0.01)
