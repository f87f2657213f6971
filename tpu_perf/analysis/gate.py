"""Whether a run or ladder is slower than another by more than a limit, and by more than noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from tpu_perf.analysis import quantities
from tpu_perf.analysis.caveats import MAX_OTHERS
from tpu_perf.analysis.intervals import Samples
from tpu_perf.analysis.ladder_comparison import LadderComparison, compare
from tpu_perf.analysis.metric_change import (
    COUNTED,
    HIGHER_IS_BETTER,
    MetricChange,
    step_samples,
)
from tpu_perf.analysis.run_comparison import COMPARED, RunComparison, compare_runs
from tpu_perf.analysis.run_summary import RunSummary
from tpu_perf.analysis.rung_record import RungRecord
from tpu_perf.analysis.significance import TwoSamples
from tpu_perf.errors import ConfigError, ExitCode

#: How often a gate may raise a false alarm, all its checks together, for code that is slower by
#: just half of the limit. For identical code it is far rarer, which leaves room for rounds that
#: are not quite independent.
FALSE_ALARMS = 0.01
#: What holds a machine up (another job) lengthens some steps; slower code lengthens all. So the
#: faster half must have slowed too: this quantile of it, by half of the limit at least.
FAST_QUANTILE = 0.25


#: Level at which a rise counts as shown to be less than the limit.
SHOWN_WITHIN = 0.05

State = Literal["regressed", "within the limit", "improved", "not resolved", "too few samples",
                "unknown"]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A state, and why in one sentence."""

    state: State
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """One metric of one rung. `changes` and `judgements`: against each base in turn; the check has
    regressed only where it has against all of them."""

    rung: str
    metric: str
    changes: tuple[MetricChange, ...]
    judgements: tuple[Judgement, ...]

    @property
    def state(self) -> State:
        """The mildest judgement: one base as slow as this clears it."""
        return min((j.state for j in self.judgements), key=_MILDEST.index)

    @property
    def because(self) -> str:
        return next(j.because for j in self.judgements if j.state == self.state)


_MILDEST: tuple[State, ...] = (
    *("improved", "within the limit", "not resolved", "too few samples", "unknown", "regressed"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """`limit`: the regression allowed, a fraction. `alpha`: level of each single test. Of the first
    comparison, rungs that regressed say what moved."""

    limit: float
    alpha: float
    checks: tuple[GateCheck, ...]
    comparisons: tuple[LadderComparison, ...]

    @property
    def regressed(self) -> tuple[GateCheck, ...]:
        return tuple(check for check in self.checks if check.state == "regressed")

    @property
    def lost(self) -> dict[str, str]:
        """Rungs that had a result at every base and have none now: rung -> why."""
        first = self.comparisons[0].lost
        return {
            name: why
            for name, why in first.items()
            if all(name in c.lost for c in self.comparisons)
        }

    @property
    def exit_code(self) -> ExitCode:
        if self.regressed:
            return ExitCode.REGRESSION
        return ExitCode.RUNG_FAILED if self.lost else ExitCode.OK


def gate(
    bases: Sequence[Path],
    new: Path,
    *,
    limit: float,
    metrics: Sequence[str] = ("step_time",),
    rungs: Sequence[str] = (),
    force: bool = False,
) -> Gate:
    """Judge `new` against each of `bases` (ladder or run directories).

    Raises ConfigError for a metric that cannot be gated, and what `compare` raises.
    """
    unknown = [name for name in metrics if name not in COMPARED]
    if unknown:
        raise ConfigError(
            f"unknown metric {', '.join(unknown)}", hint=f"known: {', '.join(COMPARED)}"
        )
    comparisons = tuple(
        compare(base, new, rungs=rungs, force=force, by=(), metrics=metrics) for base in bases
    )
    shared = [
        comparison.name
        for comparison in comparisons[0].rungs
        if all(comparison.name in [r.name for r in other.rungs] for other in comparisons)
    ]
    tested = [name for name in metrics if name not in COUNTED]
    alpha = FALSE_ALARMS / max(1, len(shared) * len(tested))
    checks = []
    for rung in shared:
        of_rung = [_rung(comparison, rung) for comparison in comparisons]
        for metric in metrics:
            changes = tuple(comparison.metric(metric) for comparison in of_rung)
            judgements = tuple(
                _judged(comparison, change, limit, alpha)
                for comparison, change in zip(of_rung, changes, strict=True)
            )
            checks.append(
                GateCheck(rung=rung, metric=metric, changes=changes, judgements=judgements)
            )
    slower = {check.rung for check in checks if check.state == "regressed"}
    return Gate(
        limit=limit,
        alpha=alpha,
        checks=tuple(checks),
        comparisons=(_with_moved(comparisons[0], slower), *comparisons[1:]),
    )


def _with_moved(comparison: LadderComparison, names: set[str]) -> LadderComparison:
    """The comparison with what moved in these rungs; reading all events takes its time, and the
    others need no explanation."""

    def looked_into(run: RunComparison) -> RunComparison:
        if run.name not in names:
            return run
        details = compare_runs(run.base, run.new, force=True, metrics=())
        return replace(run, moved=details.moved)

    return replace(comparison, rungs=tuple(looked_into(run) for run in comparison.rungs))


def _rung(comparison: LadderComparison, name: str) -> RunComparison:
    return next(rung for rung in comparison.rungs if rung.name == name)


def _judged(
    comparison: RunComparison, change: MetricChange, limit: float, alpha: float
) -> Judgement:
    if change.verdict == "unknown":
        return Judgement(state="unknown", because=change.note or "not known")
    if change.name in COUNTED:
        return _counted(change, limit)
    base, new = RunSummary(comparison.base).rung, RunSummary(comparison.new).rung
    samples = step_samples(change.name, base, new, paired=comparison.paired)
    if samples is None:
        return Judgement(state="too few samples", because=change.note or "it has no samples")
    found = judge(samples, limit, alpha)
    shared = _shared_machine(base, new)
    if shared and found.state in ("regressed", "improved"):
        return Judgement(state="not resolved", because=f"{shared}; {found.because}")
    return found


def _shared_machine(base: RungRecord, new: RungRecord) -> str | None:
    """Which runs had the machine for themselves too little for their times to be the code's."""
    for side, rung in (("new", new), ("base", base)):
        share = rung.facts.other_cpu_share
        if share is not None and share > MAX_OTHERS:
            return f"other processes took {share:.0%} of the machine while {side} was timed"
    return None


def _counted(change: MetricChange, limit: float) -> Judgement:
    before, after = change.base.value or 0.0, change.new.value or 0.0
    if change.name in HIGHER_IS_BETTER:
        before, after = after, before
    if after > before * (1 + limit):
        return Judgement(state="regressed", because="a count, which has no noise")
    if after < before:
        return Judgement(state="improved", because="a count, which has no noise")
    return Judgement(state="within the limit", because="a count, which has no noise")


def judge(samples: TwoSamples, limit: float, alpha: float) -> Judgement:
    """Whether costs (less is better) rose by more than `limit`, and by more than noise.

    Regressed: the median rose by more than the limit, a one-sided test finds at level `alpha` that
    it rose by more than half of it, and the faster rounds have slowed as well. Within the limit:
    the same test finds that it rose by less.
    """
    if not samples.can_reach(alpha, "greater"):
        if samples.smallest_p_measured <= alpha:
            return Judgement(
                state="not resolved",
                because="steps resemble their neighbours so much that "
                f"{max(samples.measured):,} of them are worth {max(sizes_of(samples))}: something "
                "else was running",
            )
        return Judgement(
            state="too few samples",
            because=f"{_sizes(samples)} cannot show anything at p < {alpha:.2g}; "
            f"{needed(alpha)} rounds on either side can",
        )
    p_value = samples.p_value("greater", beyond=1 + limit / 2)
    told = f"p = {quantities.small(p_value)}, {_sizes(samples)}"
    if samples.value > 1 + limit and p_value < alpha:
        floor = fast(samples.new) / fast(samples.base)
        if floor > 1 + limit / 2:
            return Judgement(state="regressed", because=told)
        return Judgement(
            state="not resolved",
            because=f"slower in the median, but its faster rounds are not ({floor:.2f}x): "
            f"something else was running; {told}",
        )
    if samples.value < 1 and samples.p_value("less") < alpha:
        return Judgement(state="improved", because=told)
    if samples.p_value("less", beyond=1 + limit) < SHOWN_WITHIN:
        return Judgement(state="within the limit", because=told)
    return Judgement(
        state="not resolved",
        because=f"noise hides a change of {quantities.percent(limit)}; {told}",
    )


def fast(costs: Samples) -> float:
    """The cost of the faster rounds."""
    return float(np.quantile(costs, FAST_QUANTILE))


def sizes_of(samples: TwoSamples) -> tuple[int, int]:
    return samples.base.size, samples.new.size


def _sizes(samples: TwoSamples) -> str:
    if samples.paired:
        return f"{samples.base.size} paired rounds"
    return f"{samples.base.size} against {samples.new.size} samples"


def needed(alpha: float) -> int:
    """How many samples of each side a one-sided test at level `alpha` needs at least."""
    size = 1
    while 1 / math.comb(2 * size, size) > alpha:
        size += 1
    return size
