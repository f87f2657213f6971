"""One rung against another: ratios of paired rounds, and when a start-up has paid for itself."""

from __future__ import annotations

import math

import pandas as pd

from tpu_perf.analysis.intervals import MIN_FOR_INTERVAL, Samples, median_with_interval
from tpu_perf.analysis.program_cache import loaded_share
from tpu_perf.analysis.rung_record import RungRecord, RunTables, durations
from tpu_perf.analysis.step_time import from_estimate
from tpu_perf.record.metric import Metric
from tpu_perf.record.run import Facts

#: Share of a rung's ops that may have come from the cache without changing what its start-up
#: cost means.
MINOR = 0.10


def round_medians(steps: pd.DataFrame) -> pd.Series[float]:
    """Median step duration in seconds of each round, indexed by round."""
    return pd.Series(durations(steps), index=steps["round"].to_numpy()).groupby(level=0).median()


def paired_ratios(numerator: pd.DataFrame, denominator: pd.DataFrame) -> Samples:
    """Ratio of median step durations in each round that both sides have.

    Pairing cancels what the machine did in that round to both alike (another job, a lower clock).
    """
    pairs = pd.concat([round_medians(numerator), round_medians(denominator)], axis=1, join="inner")
    return (pairs.iloc[:, 0] / pairs.iloc[:, 1]).to_numpy(dtype="float64")


def speedup(baseline: RungRecord, contender: RungRecord) -> Metric:
    """baseline / contender: median of the ratios of paired rounds; above 1 is faster.

    A round's sample is the median of its timed, compile-free steps; rounds are paired by index
    and the interval is a percentile bootstrap over rounds, left out below
    `MIN_FOR_INTERVAL` rounds. Source: steps.parquet of both runs.
    """
    if baseline.tables is None or not baseline.ok:
        return Metric.missing(
            "x", f"the baseline {baseline.name} has no result ({baseline.missing_because})"
        )
    if contender.tables is None:
        return Metric.missing("x", contender.missing_because)
    ratios = paired_ratios(baseline.tables.timed, contender.tables.timed)
    if ratios.size == 0:
        return Metric.missing("x", f"no round was sampled cleanly both here and in {baseline.name}")
    return from_estimate(median_with_interval(ratios), "x")


def paired_rounds(baseline: RungRecord, contender: RungRecord) -> int:
    """How many rounds a speed-up between these two rests on."""
    if baseline.tables is None or contender.tables is None:
        return 0
    return int(paired_ratios(baseline.tables.timed, contender.tables.timed).size)


def recorder_overhead(tables: RunTables, facts: Facts, step: Metric) -> Metric:
    """What recording adds to a step, as a fraction of a step with the recorder off.

    Median over rounds of (median timed step / median bare step) - 1, with a bootstrap interval
    over rounds; not clamped, so noise around zero shows as noise. Without bare steps it is
    derived as events per step x cost per event / (step_time - that). Source: steps.parquet, or
    the event tables and Facts.recorder_ns_per_event.
    """
    ratios = paired_ratios(tables.timed, tables.phase("bare", clean=True))
    if ratios.size:
        estimate = median_with_interval(ratios)
        return Metric(
            value=estimate.value - 1,
            unit="fraction",
            provenance="measured",
            low=None if estimate.low is None else estimate.low - 1,
            high=None if estimate.high is None else estimate.high - 1,
        )
    if facts.recorder_ns_per_event is None or step.value is None or not tables.has_programs:
        return Metric.missing("fraction", "no steps were run with the recorder off")
    return _overhead_from_events(tables, facts.recorder_ns_per_event, step.value)


def _overhead_from_events(tables: RunTables, ns_per_event: float, step_s: float) -> Metric:
    kinds = ("dispatch", "execute", "flush", "memory", "transfer", "sync")
    events = sum(len(tables.timed_events(kind)) for kind in kinds) / len(tables.timed)
    cost = events * ns_per_event * 1e-9
    if cost >= step_s:
        return Metric.missing("fraction", "the estimated cost of recording exceeds the step")
    return Metric(value=cost / (step_s - cost), unit="fraction", provenance="derived")


def startup_cost(rung: RungRecord) -> float | None:
    """Seconds until a rung is warm, beyond the same steps warm: what has to be repaid.

    The larger of warmup_time and compile_time, since the first contains most of the second, and
    besides it what no program event shows: Dynamo's tracing, torch inductor's compiling.
    """
    known = [rung.value(name) for name in ("warmup_time", "compile_time")]
    return max((value for value in known if value is not None), default=None)


def startup_comparable(before: RungRecord, after: RungRecord) -> bool:
    """Whether both start-up costs mean the same: both built their programs, or both loaded them.

    A rung that found its programs in the cache shows what loading costs, not compiling.
    """
    shares = [loaded_share(rung.measured) for rung in (before, after)]
    return max(shares) <= MINOR or min(shares) >= 1 - MINOR


def break_even_steps(before: RungRecord, after: RungRecord) -> float | None:
    """Steps after which `after`'s extra start-up has been repaid by its faster step.

    (start-up cost difference) / (step_time difference), rounded up; 0 if it starts no slower;
    None if it never repays, a number is missing or the costs cannot be compared. Source:
    warmup_time, compile_time, step_time.
    """
    step_before, step_after = before.value("step_time"), after.value("step_time")
    if step_before is None or step_after is None or step_after >= step_before:
        return None
    cost_before, cost_after = startup_cost(before), startup_cost(after)
    if cost_before is None or cost_after is None or not startup_comparable(before, after):
        return None
    return max(0.0, math.ceil((cost_after - cost_before) / (step_before - step_after)))


def too_few_rounds(rounds: int) -> bool:
    return 0 < rounds < MIN_FOR_INTERVAL
