"""When a rung is warm, and in which order rungs take their turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tpu_perf.record.plan import SamplingPlan


@dataclass(frozen=True, slots=True)
class Warmth:
    """Whether a rung is warm, and the sentence that goes into the run."""

    warm: bool
    note: str


def judge_warmth(
    durations_s: Sequence[float], compiles: Sequence[int], plan: SamplingPlan
) -> Warmth:
    """Warm: no compile in the last `quiet_steps` steps, and the median of these steps within
    `settle_fraction` of the median of as many steps before them."""
    window = plan.quiet_steps
    if len(durations_s) < 2 * window:
        return Warmth(False, f"only {len(durations_s)} steps so far")
    if any(compiles[-window:]):
        return Warmth(False, f"still compiling in the last {window} steps")
    before, now = median(durations_s[-2 * window : -window]), median(durations_s[-window:])
    change = abs(now - before) / before if before > 0 else 0.0
    told = (
        f"no compile for {window} steps, median moved {change:.1%} from one window of {window} "
        f"steps to the next (limit {plan.settle_fraction:.0%})"
    )
    return Warmth(change <= plan.settle_fraction, told)


def round_order(names: Sequence[str], round_index: int) -> list[str]:
    """Every rung once, each round beginning one further, so that none is always first."""
    if not names:
        return []
    shift = round_index % len(names)
    return [*names[shift:], *names[:shift]]
