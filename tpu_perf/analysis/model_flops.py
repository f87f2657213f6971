"""Model FLOPs and how much of the peak they use."""

from __future__ import annotations

from collections.abc import Iterable

from tpu_perf.analysis import quantities
from tpu_perf.analysis.rung_record import RungRecord
from tpu_perf.record.metric import Metric, Provenance
from tpu_perf.record.run import Facts


def model_flops_per_step(facts: Facts) -> Metric:
    """FLOPs the model's mathematics needs per step, by formula from shapes, not what was executed.

    Recomputation and padding are not counted. Source: Facts.model_flops_per_step, under the
    convention in Facts.flops_convention.
    """
    if facts.model_flops_per_step is None:
        return Metric.missing("FLOP", "the workload's FLOPs are not known")
    return Metric(value=facts.model_flops_per_step, unit="FLOP", provenance="derived")


def mfu(facts: Facts, step: Metric) -> Metric:
    """Model FLOPs utilisation: model_flops_per_step / (step_time x peak), a fraction.

    Refused above 1: then the FLOPs, the time or the peak is wrong. The interval is that of
    step_time inverted. `assumed` where the peak is. Source: Facts and step_time.
    """
    flops, peak = facts.model_flops_per_step, facts.peak_flops_per_s
    if flops is None:
        return Metric.missing("fraction", "the workload's FLOPs are not known")
    if not peak:
        return Metric.missing("fraction", "the peak FLOP/s of this device is not known")
    if step.value is None:
        return Metric.missing("fraction", f"needs step_time: {step.reason}")
    value = flops / (step.value * peak)
    if value > 1:
        return Metric.missing(
            "fraction",
            f"refused: {value:.0%} of the peak is impossible; FLOPs, step time or peak is wrong",
        )
    provenance: Provenance = "assumed" if facts.peak_provenance == "assumed" else "derived"
    return Metric(
        value=value,
        unit="fraction",
        provenance=provenance,
        low=None if step.high is None else flops / (step.high * peak),
        high=None if step.low is None else flops / (step.low * peak),
    )


def peak_notes(rungs: Iterable[RungRecord]) -> list[str]:
    """Where the peak of MFU came from, one sentence for each distinct source."""
    sources: dict[str, list[str]] = {}
    for rung in rungs:
        facts = rung.facts
        if facts.peak_flops_per_s:
            rate = quantities.scaled(facts.peak_flops_per_s, "FLOP/s")
            source = f"{rate}, {facts.peak_source or 'source unknown'}"
            sources.setdefault(source, []).append(rung.name)
    if len(sources) == 1:
        return [f"MFU against a peak of {next(iter(sources))}"]
    return [f"MFU of {', '.join(names)} against {source}" for source, names in sources.items()]
