"""The documents behind `compare --json` and `gate --json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tpu_perf.analysis.gate import Gate
from tpu_perf.analysis.ladder_comparison import LadderComparison
from tpu_perf.analysis.metric_change import MetricChange
from tpu_perf.analysis.run_comparison import RunComparison

DOCUMENT_SCHEMA_VERSION = 1


def comparison_document(comparison: LadderComparison) -> dict[str, Any]:
    """Everything that was compared, differences and missing values with their reasons included."""
    return {
        "schema_version": DOCUMENT_SCHEMA_VERSION,
        "base": str(comparison.base),
        "new": str(comparison.new),
        "rungs": [_run(run) for run in comparison.rungs],
        "lost": comparison.lost,
        "gained": comparison.gained,
        "only_base": list(comparison.only_base),
        "only_new": list(comparison.only_new),
    }


def gate_document(gate: Gate) -> dict[str, Any]:
    return {
        "schema_version": DOCUMENT_SCHEMA_VERSION,
        "limit": gate.limit,
        "alpha": gate.alpha,
        "exit_code": int(gate.exit_code),
        "bases": [str(comparison.base) for comparison in gate.comparisons],
        "new": str(gate.comparisons[0].new),
        "lost": gate.lost,
        "checks": [
            {
                "rung": check.rung,
                "metric": check.metric,
                "state": check.state,
                "because": check.because,
                "against": [
                    {**_change(change), "state": judgement.state, "because": judgement.because}
                    for change, judgement in zip(check.changes, check.judgements, strict=True)
                ],
            }
            for check in gate.checks
        ],
    }


def _run(run: RunComparison) -> dict[str, Any]:
    return {
        "name": run.name,
        "base": str(run.base.directory),
        "new": str(run.new.directory),
        "paired": run.paired,
        "differences": [asdict(difference) for difference in run.differences],
        "metrics": {change.name: _change(change) for change in run.metrics},
        "moved": [{**asdict(moved), "difference_s": moved.difference_s} for moved in run.moved],
        "notes": list(run.notes),
    }


def _change(change: MetricChange) -> dict[str, Any]:
    return {
        "base": change.base.to_json(),
        "new": change.new.to_json(),
        "change": change.change.to_json(),
        "verdict": change.verdict,
        "p_value": change.p_value,
        "samples": None if change.samples is None else list(change.samples),
        "method": change.method,
        "note": change.note,
    }
