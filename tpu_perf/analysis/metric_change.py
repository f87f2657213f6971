"""One metric of two runs: how much it changed, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from tpu_perf.analysis import quantities
from tpu_perf.analysis.intervals import MIN_FOR_INTERVAL, Samples
from tpu_perf.analysis.rung_record import RungRecord, RunTables, durations
from tpu_perf.analysis.significance import TwoSamples
from tpu_perf.errors import StoredRunError
from tpu_perf.record.metric import Metric

Verdict = Literal["better", "worse", "changed", "same", "no difference found",
                  "too few samples", "unknown"]  # fmt: skip
VERDICTS: tuple[str, ...] = get_args(Verdict)
ALPHA = 0.05

#: How a metric follows from step time in seconds, given tokens or FLOPs a step: its samples are
#: those of the steps.
_FROM_STEPS: dict[str, Callable[[RungRecord], float | None] | None] = {
    "step_time": None,
    "tokens_per_second": lambda rung: rung.facts.tokens_per_step,
    "mfu": lambda rung: _attainable_share(rung),
}
#: Counts: the same program gives the same number, so any change is one.
COUNTED = (
    *("model_flops_per_step", "hbm_peak_bytes", "hbm_boundary_bytes_per_step"),
    *("hbm_accessed_bytes_per_step", "compile_count", "programs", "cache_requests_per_step"),
    *("cache_hit_rate", "collectives_per_step", "collective_bytes_per_step"),
    *("collective_sent_bytes_per_step", "replicated_bytes"),
)
OF_CACHE = ("compile_count", "cache_hit_rate")
HIGHER_IS_BETTER = ("tokens_per_second", "mfu", "cache_hit_rate", "speedup", "scaling_efficiency")
NEAR_ZERO = ("loss_max_abs_diff", "grad_norm_max_rel_diff", "recorder_overhead")
NO_DIRECTION = ("model_flops_per_step", "recorder_overhead")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """`change` is new / base (unit x, with its 95 % interval where the samples carry one), missing
    where it is not known. `p_value`: two-sided, None where nothing was tested; `samples` what the
    test has of each side. `method` and `note` say how the verdict was reached."""

    name: str
    base: Metric
    new: Metric
    change: Metric
    verdict: Verdict
    p_value: float | None = None
    samples: tuple[int, int] | None = None
    method: str | None = None
    note: str | None = None

    @property
    def moved(self) -> bool:
        return self.verdict in ("better", "worse", "changed")


def metric_change(name: str, base: RungRecord, new: RungRecord, *, paired: bool) -> MetricChange:
    """Compare one metric of METRIC_UNITS. `paired`: both runs' rounds were sampled interleaved."""
    before, after = base.metric(name), new.metric(name)
    if before.value is None or after.value is None:
        side = "base" if before.value is None else "new"
        reason = before.reason if before.value is None else after.reason
        missing = Metric.missing("x", f"not known of {side}: {reason}")
        return MetricChange(name=name, base=before, new=after, change=missing, verdict="unknown",
                            note=missing.reason)  # fmt: skip
    if name == "mfu" and (peaks := _measured_apart(base, new)):
        return MetricChange(
            name=name, base=before, new=after, change=_ratio(before.value, after.value),
            verdict="unknown", note=f"each run measured its own peak ({peaks}); step_time compares "
            "what was timed",
        )  # fmt: skip
    if name in _FROM_STEPS:
        samples = step_samples(name, base, new, paired=paired)
        if samples is not None:
            return _tested(name, before, after, samples)
    change = _ratio(before.value, after.value)
    if name in NEAR_ZERO:
        change = Metric.missing("x", "a ratio of two differences near 0 says nothing")
    if name in COUNTED:
        same = np.isclose(before.value, after.value, rtol=1e-9, atol=0)
        verdict: Verdict = "same" if same else directed(name, after.value - before.value)
        note = "depends on what the program cache held" if name in OF_CACHE and not same else None
        return MetricChange(name=name, base=before, new=after, change=change, verdict=verdict,
                            method="counted, not timed", note=note)  # fmt: skip
    return MetricChange(
        name=name, base=before, new=after, change=change, verdict="too few samples",
        note="measured once in each run, so its noise is not known",
    )  # fmt: skip


def directed(name: str, difference: float) -> Verdict:
    """What a difference of this sign means for a metric."""
    if name in NO_DIRECTION:
        return "changed"
    return "better" if (difference > 0) == (name in HIGHER_IS_BETTER) else "worse"


def _ratio(before: float, after: float) -> Metric:
    if before == 0:
        if after == 0:
            return Metric(value=1.0, unit="x", provenance="derived")
        return Metric.missing("x", "it was 0 before, so there is no ratio")
    return Metric(value=after / before, unit="x", provenance="derived")


def _tested(name: str, before: Metric, after: Metric, samples: TwoSamples) -> MetricChange:
    ratio = samples.ratio
    bounds = (ratio.value, ratio.low, ratio.high)
    if name in HIGHER_IS_BETTER:  # the samples are costs
        bounds = (1 / ratio.value, ratio.high and 1 / ratio.high, ratio.low and 1 / ratio.low)
    change = Metric(value=bounds[0], unit="x", provenance="derived", low=bounds[1], high=bounds[2])
    sizes = samples.base.size, samples.new.size
    if not samples.can_reach(ALPHA):
        return MetricChange(
            name=name, base=before, new=after, change=change, verdict="too few samples",
            samples=sizes, method=samples.method,
            note=f"{sizes[0]} against {sizes[1]} independent samples cannot show a difference at "
            f"p < {ALPHA:g}; {MIN_FOR_INTERVAL} rounds on either side can",
        )  # fmt: skip
    p_value = samples.p_value()
    verdict: Verdict = "no difference found"
    if p_value < ALPHA and ratio.value != 1:
        verdict = "worse" if ratio.value > 1 else "better"
    return MetricChange(name=name, base=before, new=after, change=change, verdict=verdict,
                        p_value=p_value, samples=sizes, method=samples.method)  # fmt: skip


def step_samples(
    name: str, base: RungRecord, new: RungRecord, *, paired: bool
) -> TwoSamples | None:
    """The samples behind a metric that follows from step time, as a cost (seconds, seconds a token
    and so on: less is better); None for other metrics, and where a run's steps cannot be read.

    A unit is a round; a run without five rounds gives its steps instead, put together where
    neighbouring steps resemble each other.
    """
    if name not in _FROM_STEPS or base.tables is None or new.tables is None:
        return None
    work = _FROM_STEPS[name]
    scales = (1.0, 1.0) if work is None else (work(base), work(new))
    if scales[0] is None or scales[1] is None:
        return None
    try:
        if paired and (pairs := _paired(base.tables, new.tables)):
            return TwoSamples.of(
                [unit / scales[0] for unit in pairs[0]], [unit / scales[1] for unit in pairs[1]],
                paired=True,
            )  # fmt: skip
        before, after = step_units(base.tables), step_units(new.tables)
    except StoredRunError:
        return None
    if not before or not after:
        return None
    return TwoSamples.of(
        [unit / scales[0] for unit in before], [unit / scales[1] for unit in after]
    )


def step_units(tables: RunTables) -> list[Samples]:
    """Step times in seconds of each round, in order; single timed steps where there are fewer than
    five rounds."""
    rounds = _rounds(tables)
    if len(rounds) >= MIN_FOR_INTERVAL:
        return list(rounds.values())
    return [np.array([seconds]) for seconds in durations(tables.timed)]


def _rounds(tables: RunTables) -> dict[int, Samples]:
    rows = tables.timed
    of_round = rows["round"].to_numpy()
    seconds = durations(rows)
    return {int(number): seconds[of_round == number] for number in np.unique(of_round)}


def _paired(base: RunTables, new: RunTables) -> tuple[list[Samples], list[Samples]] | None:
    before, after = _rounds(base), _rounds(new)
    both = sorted(before.keys() & after.keys())
    if len(both) < MIN_FOR_INTERVAL:
        return None
    return [before[number] for number in both], [after[number] for number in both]


def _attainable_share(rung: RungRecord) -> float | None:
    """MFU of a step of one second."""
    flops, peak = rung.facts.model_flops_per_step, rung.facts.peak_flops_per_s
    return flops / peak if flops and peak else None


def _measured_apart(base: RungRecord, new: RungRecord) -> str | None:
    """The two peaks, where each run's was measured on its own CPU at its own time."""
    facts = base.facts, new.facts
    peaks = [f.peak_flops_per_s for f in facts if f.peak_provenance == "measured"]
    if len(peaks) < 2 or peaks[0] is None or peaks[1] is None or peaks[0] == peaks[1]:
        return None
    return " and ".join(quantities.scaled(peak, "FLOP/s") for peak in peaks if peak)
