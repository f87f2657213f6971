"""How long a step takes, the first ones apart from the steady ones."""

from __future__ import annotations

from tpu_perf.analysis.intervals import Estimate, median_with_interval
from tpu_perf.analysis.rung_record import RunTables, durations
from tpu_perf.record.metric import Metric
from tpu_perf.record.run import Facts

NO_TIMED_STEPS = "no timed step that was free of compiles"


def from_estimate(estimate: Estimate, unit: str) -> Metric:
    """A measured metric from a bootstrapped median."""
    return Metric(
        value=estimate.value,
        unit=unit,
        provenance="measured",
        low=estimate.low,
        high=estimate.high,
    )


def step_time(tables: RunTables) -> Metric:
    """Median of (t_end - t_start) over timed steps free of compiles, in seconds.

    t_end is taken after the fence, so it covers the device's work. The interval is a percentile
    bootstrap of the median over steps. Source: steps.parquet.
    """
    samples = durations(tables.timed)
    if samples.size == 0:
        return Metric.missing("s", NO_TIMED_STEPS)
    return from_estimate(median_with_interval(samples), "s")


def first_step_time(tables: RunTables) -> Metric:
    """Wall time of the very first step, compiles included, in seconds. Source: steps.parquet."""
    samples = durations(tables.phase("first"))
    if samples.size == 0:
        return Metric.missing("s", "no first step was recorded")
    return Metric(value=float(samples[0]), unit="s", provenance="measured")


def warmup_time(tables: RunTables, step: Metric) -> Metric:
    """What warming up cost beyond doing the same steps warm, in seconds.

    sum(first and warm-up steps) - n x step_time: TorchTPU's definition of warm-up overhead. The
    steps' own durations are summed, because between steps the worker pauses while other rungs
    run. Noise can make it slightly negative; it is not clamped. Source: steps.parquet.
    """
    samples = durations(tables.phase("first", "warmup"))
    if samples.size == 0:
        return Metric.missing("s", "no first or warm-up step was recorded")
    if step.value is None:
        return Metric.missing("s", f"needs step_time: {step.reason}")
    overhead = float(samples.sum()) - samples.size * step.value
    return Metric(value=overhead, unit="s", provenance="derived")


def tokens_per_second(facts: Facts, step: Metric) -> Metric:
    """tokens_per_step / step_time, in tokens/s; the interval is that of step_time inverted.

    Source: Facts.tokens_per_step (from the workload) and step_time.
    """
    if facts.tokens_per_step is None:
        return Metric.missing("tokens/s", "the workload does not say how many tokens a step has")
    if step.value is None:
        return Metric.missing("tokens/s", f"needs step_time: {step.reason}")
    tokens = facts.tokens_per_step
    return Metric(
        value=tokens / step.value,
        unit="tokens/s",
        provenance="derived",
        low=None if step.high is None else tokens / step.high,
        high=None if step.low is None else tokens / step.low,
    )
