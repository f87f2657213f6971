"""Exporter `csv`: one line per rung and metric, for spreadsheets."""

from __future__ import annotations

import csv
from pathlib import Path

from tpu_perf.analysis.ladder_metrics import completed
from tpu_perf.export.interface import EXPORTERS, Exporter
from tpu_perf.record.metric import METRIC_UNITS

FILE_NAME = "metrics.csv"
HEADER = ("rung", "status", "metric", "value", "unit", "provenance", "low", "high", "reason")
#: A spreadsheet takes a cell that starts so for a formula; rung names are text of the user.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def write(directory: Path) -> Path:
    """Write metrics.csv; a missing value is an empty cell with its reason in the last column."""
    _, rungs = completed(directory)
    path = directory / FILE_NAME
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for rung in rungs:
            for name in METRIC_UNITS:
                metric = rung.metric(name)
                numbers = (metric.value, metric.unit, metric.provenance, metric.low, metric.high)
                reason = as_text(metric.reason or "")
                writer.writerow((as_text(rung.name), rung.status, name, *numbers, reason))
    return path


def as_text(cell: str) -> str:
    """The cell so that a spreadsheet shows it rather than evaluates it."""
    return f"'{cell}" if cell.startswith(FORMULA_STARTS) else cell


EXPORTERS.add("csv", Exporter(name="csv", summary="one line per rung and metric", write=write))
