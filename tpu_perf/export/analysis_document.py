"""The document behind `tpu-perf analyze --json`: every figure with its unit and provenance."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any

from tpu_perf.analysis.buffer_lifetimes import GROUPS
from tpu_perf.analysis.device_idle import CAUSES
from tpu_perf.analysis.memory_peak import Held, MemoryPeak
from tpu_perf.analysis.op_table import WHAT, TableRow
from tpu_perf.analysis.run_analysis import RunAnalysis

DOCUMENT_SCHEMA_VERSION = 1
#: Points of the live-bytes timeline that a document holds at most.
TIMELINE_POINTS = 500


def analysis_document(analysis: RunAnalysis, top: int | None = None) -> dict[str, Any]:
    """One JSON object. A missing figure has a null value and a `reason`. `top` bounds the rows of
    the table and of the lines at the peak; `rows_left_out` says how many it hides."""
    rows = analysis.table.rows if top is None else analysis.table.rows[:top]
    return {
        "schema_version": DOCUMENT_SCHEMA_VERSION,
        "run": str(analysis.stored.directory.resolve()),
        "rung": analysis.stored.run.plan.rung,
        "attention": analysis.attention,
        "step": _metrics(analysis.step),
        "table": {
            "by": analysis.table.by,
            "measures": WHAT,
            "share_of": analysis.table.share_of,
            "rows": [_row(row) for row in rows],
            "rows_left_out": len(analysis.table.rows) - len(rows),
            "total": _row(analysis.table.total),
        },
        "machine": {**asdict(analysis.machine), "ridge": analysis.machine.ridge},
        "traffic": _metrics(
            {
                "boundary_bytes": analysis.traffic.boundary,
                "accessed_bytes": analysis.traffic.accessed,
                "separate_bytes": analysis.traffic.separate,
                "saved_by_fusion": analysis.traffic.saved,
            }
        ),
        "idle": _idle(analysis),
        "variation": {
            "steps": analysis.variation.steps,
            "median": analysis.variation.median.to_json(),
            "cv": analysis.variation.cv.to_json(),
            "outliers": [asdict(outlier) for outlier in analysis.variation.outliers],
        },
        "recompiles": [asdict(row) for row in analysis.recompiles],
        "host_syncs": [asdict(row) for row in analysis.syncs],
        "memory": _memory(analysis.memory, top),
        "unknown": {name: dict(reasons) for name, reasons in analysis.unknown.items()},
        "hardware_flops_from": dict(analysis.flops_sources),
        "notes": list(analysis.notes),
        "warnings": list(analysis.warnings),
    }


def _metrics(metrics: Any) -> dict[str, Any]:
    return {name: metric.to_json() for name, metric in metrics.items()}


def _row(row: TableRow) -> dict[str, Any]:
    return {"label": row.label, "bound": row.bound, **_metrics(row.measures)}


def _idle(analysis: RunAnalysis) -> dict[str, Any] | None:
    found = analysis.idle
    if found is None:
        return None
    return {
        "method": found.method,
        "step_time": found.step_s.to_json(),
        "busy": found.busy.to_json(),
        "causes": {
            cause: {"meaning": CAUSES[cause], **metric.to_json()}
            for cause, metric in found.causes.items()
        },
        "gaps": [asdict(gap) for gap in found.gaps],
    }


def _memory(memory: MemoryPeak, top: int | None) -> dict[str, Any]:
    times, live = thinned(memory)
    return {
        "step": memory.step,
        "after_step_start_s": memory.after_step_start_s,
        "phase": memory.phase,
        "tensors": memory.tensors.to_json(),
        "with_temporaries": memory.with_temporaries.to_json(),
        "largest_temporaries": memory.temporaries.to_json(),
        "largest_temporaries_of": memory.temporaries_of,
        "released_unseen_bytes": memory.unseen_bytes,
        "groups": [{**_held(held), "meaning": GROUPS[held.group]} for held in memory.groups],
        "lines": [_held(held) for held in (memory.lines if top is None else memory.lines[:top])],
        "timeline": {"t_s": times, "live_bytes": live},
    }


def _held(held: Held) -> dict[str, Any]:
    return {**asdict(held), "names": list(held.names)}


def thinned(memory: MemoryPeak, points: int = TIMELINE_POINTS) -> tuple[list[float], list[float]]:
    """The timeline with at most so many points; of each stretch the highest is kept."""
    times, live = memory.timeline["t_s"].to_numpy(), memory.timeline["live_bytes"].to_numpy()
    if len(times) <= points:
        return times.tolist(), live.tolist()
    edges = [round(index * len(times) / points) for index in range(points + 1)]
    kept = [
        begin + int(live[begin:end].argmax())
        for begin, end in itertools.pairwise(edges)
        if end > begin
    ]
    return times[kept].tolist(), live[kept].tolist()
