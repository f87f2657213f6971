"""Completes a ladder: every metric, the warnings and the sentence of why, for each rung."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tpu_perf.analysis import (
    caveats,
    collectives,
    comparison,
    device_memory,
    lanes,
    model_flops,
    numerics,
    program_cache,
    step_time,
    why,
)
from tpu_perf.analysis.rung_record import RungRecord, RunTables, open_rungs
from tpu_perf.errors import StoredRunError
from tpu_perf.record.ladder import Ladder
from tpu_perf.record.metric import METRIC_UNITS, Metric
from tpu_perf.record.run import Facts
from tpu_perf.record.store import update_run


def complete(directory: Path) -> None:
    """Compute what can be computed of each rung and store it in its run.json.

    Works on partial ladders: rungs without a run directory are left alone, rungs that are not
    ok get every metric as missing with their reason. Doing it twice changes nothing.
    """
    ladder, rungs = open_rungs(directory)
    for before, after in zip(rungs, computed(rungs, ladder.baseline), strict=True):
        if after.run is not None and after.run != before.run:
            update_run(after.directory, after.run)


def completed(directory: Path) -> tuple[Ladder, list[RungRecord]]:
    """Open a ladder for showing: with the stored metrics, or computed now where any are missing
    (a parent that was killed never completed it). Writes nothing."""
    ladder, rungs = open_rungs(directory)
    if all(rung.run is None or METRIC_UNITS.keys() <= rung.run.metrics.keys() for rung in rungs):
        return ladder, rungs
    return ladder, computed(rungs, ladder.baseline)


def computed(rungs: list[RungRecord], baseline_name: str) -> list[RungRecord]:
    """The same rungs with metrics, then with the sentences, which compare finished metrics."""
    baseline = next((rung for rung in rungs if rung.name == baseline_name), None)
    measured = [_with_metrics(rung, baseline, rungs) for rung in rungs]
    baseline = next((rung for rung in measured if rung.name == baseline_name), None)
    out = []
    before: RungRecord | None = None
    for rung in measured:
        others = [other for other in measured if other is not rung and _has_results(other)]
        out.append(_with_sentences(rung, baseline, before, others))
        if _has_results(rung):
            before = rung
    return out


def _has_results(rung: RungRecord) -> bool:
    return rung.ok and rung.value("step_time") is not None


def _with_metrics(
    rung: RungRecord, baseline: RungRecord | None, rungs: list[RungRecord]
) -> RungRecord:
    if rung.run is None or rung.tables is None:
        return rung
    warnings = caveats.of_worker(rung.run.warnings)
    if not rung.ok:
        metrics = all_missing(rung.missing_because)
    else:
        try:
            rung.tables.read_all()
            metrics = metrics_of(rung.tables, rung.facts)
            metrics["speedup"] = _speedup(rung, baseline)
            metrics["scaling_efficiency"] = _scaling(rung, rungs)
        except StoredRunError as error:
            metrics = all_missing(error.message)
            warnings = (*warnings, f"damaged tables: {error.message}")
    ordered = {name: metrics[name] for name in METRIC_UNITS}
    return rung.with_run(replace(rung.run, metrics=ordered, warnings=warnings, why=None))


def _speedup(rung: RungRecord, baseline: RungRecord | None) -> Metric:
    if baseline is None:
        return Metric.missing("x", "this ladder has no baseline")
    try:
        return comparison.speedup(baseline, rung)
    except StoredRunError as error:
        return Metric.missing("x", f"the baseline {baseline.name} is damaged: {error.message}")


def _scaling(rung: RungRecord, rungs: list[RungRecord]) -> Metric:
    try:
        return collectives.scaling_efficiency(rung, rungs)
    except StoredRunError as error:
        return Metric.missing("fraction", f"the rung on one device is damaged: {error.message}")


def all_missing(reason: str) -> dict[str, Metric]:
    return {name: Metric.missing(unit, reason) for name, unit in METRIC_UNITS.items()}


def metrics_of(tables: RunTables, facts: Facts) -> dict[str, Metric]:
    """Every metric that needs no other run."""
    step, recorded = step_time.step_time(tables), tables.recorded
    return {
        "step_time": step,
        "tokens_per_second": step_time.tokens_per_second(facts, step),
        "mfu": model_flops.mfu(facts, step),
        "model_flops_per_step": model_flops.model_flops_per_step(facts),
        "hbm_peak_bytes": device_memory.hbm_peak_bytes(tables, facts),
        "hbm_boundary_bytes_per_step": device_memory.hbm_boundary_bytes_per_step(recorded),
        "hbm_accessed_bytes_per_step": device_memory.hbm_accessed_bytes_per_step(recorded),
        "first_step_time": step_time.first_step_time(tables),
        "warmup_time": step_time.warmup_time(tables, step),
        "compile_time": program_cache.compile_time(tables),
        "compile_count": program_cache.compile_count(tables),
        "programs": program_cache.programs(tables),
        "cache_requests_per_step": program_cache.cache_requests_per_step(recorded),
        "cache_hit_rate": program_cache.cache_hit_rate(tables),
        "host_time_per_step": lanes.host_time_per_step(tables, facts),
        "device_time_per_step": lanes.device_time_per_step(facts),
        **collectives.collective_metrics(tables),
        "loss_max_abs_diff": numerics.loss_max_abs_diff(facts),
        "grad_norm_max_rel_diff": numerics.grad_norm_max_rel_diff(facts),
        "recorder_overhead": comparison.recorder_overhead(tables, facts, step),
    }


def _with_sentences(
    rung: RungRecord,
    baseline: RungRecord | None,
    before: RungRecord | None,
    others: list[RungRecord],
) -> RungRecord:
    if (
        rung.run is None
        or not rung.ok
        or any(warning.startswith("damaged tables: ") for warning in rung.warnings)
    ):
        return rung
    measured_baseline = baseline if baseline is not None and _has_results(baseline) else None
    warnings = (*rung.warnings, *caveats.warnings_of(rung, measured_baseline))
    why_sentence = why.sentence(rung, before, others)
    return rung.with_run(replace(rung.run, warnings=warnings, why=why_sentence))
