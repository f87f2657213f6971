"""How much steady steps differ, and which of them stand out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tpu_perf.analysis.intervals import spread
from tpu_perf.analysis.rung_record import RunTables, durations
from tpu_perf.analysis.step_time import NO_TIMED_STEPS
from tpu_perf.record.metric import Metric

#: A step further from the median than so many scaled median absolute deviations stands out
#: (Iglewicz and Hoaglin's 3.5), if it is also further than a twentieth of the median: steps that
#: hardly differ have hardly any deviation.
DEVIATIONS, LEAST = 3.5, 0.05
_NORMAL = 1.4826  # scales the median absolute deviation to a normal's standard deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A timed step that stands out. `beside` names what else happened in it."""

    step: int
    seconds: float
    of_median: float
    beside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """`cv` is standard deviation over mean of the timed steps free of compiles. `outliers` are
    among all timed steps."""

    steps: int
    median: Metric
    cv: Metric
    outliers: tuple[Outlier, ...]


def variation(tables: RunTables) -> Variation:
    """Spread and outliers of timed steps. Source: steps.parquet."""
    clean = durations(tables.timed)
    if not clean.size:
        missing = Metric.missing
        return Variation(
            steps=0, median=missing("s", NO_TIMED_STEPS), cv=missing("fraction", NO_TIMED_STEPS),
            outliers=(),
        )  # fmt: skip
    median = float(np.median(clean))
    deviation = float(np.median(np.abs(clean - median))) * _NORMAL
    limit = max(DEVIATIONS * deviation, LEAST * median)
    timed = tables.phase("timed")
    outliers = [
        Outlier(
            step=step, seconds=seconds, of_median=seconds / median, beside=_beside(tables, step)
        )
        for step, seconds in zip(timed["step"].astype(int), durations(timed), strict=True)
        if abs(seconds - median) > limit
    ]
    cv = (
        Metric(value=spread(clean), unit="fraction", provenance="derived")
        if clean.size > 1
        else Metric.missing("fraction", "one step has no variation")
    )
    return Variation(
        steps=int(clean.size),
        median=Metric(value=median, unit="s", provenance="measured"),
        cv=cv,
        outliers=tuple(outliers),
    )


def _beside(tables: RunTables, step: int) -> str:
    """What happened in this step and not in the median one."""
    out = []
    compiles = int(tables.steps.loc[tables.steps["step"] == step, "compiles"].iloc[0])
    if compiles:
        out.append(f"{compiles} compiled or loaded")
    for kind, noun in (("sync", "syncs"), ("transfer", "transfers"), ("fallback", "fallbacks")):
        events = tables.timed_events(kind)["step"].value_counts()
        usual = events.reindex(tables.timed["step"].to_numpy(), fill_value=0).median()
        here = int((tables.events(kind)["step"] == step).sum())
        if here > usual:
            out.append(f"{here} {noun} (usually {usual:g})")
    return ", ".join(out) or "nothing else recorded"
