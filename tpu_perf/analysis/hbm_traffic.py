"""Bytes that steady steps move through device memory, and what putting ops together saved."""

from __future__ import annotations

from dataclasses import dataclass

from tpu_perf.analysis.device_memory import (
    hbm_accessed_bytes_per_step,
    hbm_boundary_bytes_per_step,
)
from tpu_perf.analysis.measured_ops import MeasuredOps
from tpu_perf.analysis.run_details import RunDetails, records
from tpu_perf.analysis.rung_record import RunTables
from tpu_perf.record.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of a steady step. `separate`: what the same ops move when each is a program of its
    own, as in Strict. `saved`: the share of it that does not cross a program's boundary."""

    boundary: Metric
    accessed: Metric
    separate: Metric
    saved: Metric


def traffic(tables: RunTables, details: RunDetails, measured: MeasuredOps) -> Traffic:
    """Boundary and accessed bytes, against the bytes_in + bytes_out of the ops' calls."""
    tables = tables.recorded
    boundary = hbm_boundary_bytes_per_step(tables)
    separate = _separate(details, measured)
    if separate.value and boundary.value is not None:
        value = 1 - boundary.value / separate.value
        saved = Metric(value=value, unit="fraction", provenance="derived")
    else:
        why = separate.reason or boundary.reason or "no op moves bytes"
        saved = Metric.missing("fraction", why)
    return Traffic(
        boundary=boundary,
        accessed=hbm_accessed_bytes_per_step(tables),
        separate=separate,
        saved=saved,
    )


def _separate(details: RunDetails, measured: MeasuredOps) -> Metric:
    if measured.rows.empty:
        return Metric.missing("bytes", "no programs were executed in steady steps")
    total, without = 0.0, 0.0
    for row in records(measured.rows):
        own = details.call_bytes.get(int(row.call))
        if own is None:
            without += row.per_step
        else:
            total += sum(own) * row.per_step
    if without:
        return Metric.missing(
            "bytes", f"the arguments of {without:,.0f} executions a step are not recorded"
        )
    return Metric(value=total, unit="bytes", provenance="derived")
