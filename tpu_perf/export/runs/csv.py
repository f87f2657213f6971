"""Exporter `csv` of a run: one file a table, for spreadsheets."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tpu_perf.analysis.run_summary import OP_TABLES, RunSummary
from tpu_perf.errors import ExportMismatch
from tpu_perf.export.csv import as_text
from tpu_perf.export.report.figures import MAX_POINTS, thin
from tpu_perf.export.run_interface import RUN_EXPORTERS, Exported, RunExporter
from tpu_perf.record.metric import METRIC_UNITS
from tpu_perf.record.store import StoredRun


def tables_of(summary: RunSummary) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Every table by file name, and notes. NaN stands for what is not known."""
    notes = [f"tables of ops: host time of dispatch over {summary.counted}"]
    memory, note = memory_timeline(summary)
    notes += [note] if note else []
    metrics = [(name, summary.rung.metric(name)) for name in METRIC_UNITS]
    out = {
        "metrics": pd.DataFrame(
            [
                (name, m.value, m.unit, m.provenance or "", m.low, m.high, m.reason or "")
                for name, m in metrics
            ],
            columns=["metric", "value", "unit", "provenance", "low", "high", "reason"],
        ),
        "steps": summary.steps,
        **{name: summary.ops(name) for name in OP_TABLES},
        "programs": summary.programs,
        "compiles": summary.compiles,
        "memory": memory,
        "peak_holders": summary.peak_holders,
    }
    return out, notes


def memory_timeline(summary: RunSummary) -> tuple[pd.DataFrame, str | None]:
    """Columns t_ns, live_bytes; thinned so that each stretch keeps its lowest and highest."""
    events = summary.memory
    if len(events) <= MAX_POINTS:
        return events[["t_ns", "live_bytes"]], None
    positions, live = thin(
        np.arange(len(events), dtype=np.float64), events["live_bytes"].to_numpy("float64")
    )
    times = events["t_ns"].to_numpy()[np.array(positions, dtype=np.int64)]
    kept = pd.DataFrame({"t_ns": times, "live_bytes": np.array(live).astype(np.int64)})
    note = (
        f"memory timeline: {len(kept):,} of {len(events):,} events, the lowest and highest of each "
        "stretch"
    )
    return kept, note


def cell(value: Any) -> Any:
    """A value as a cell: text that a spreadsheet shows and never evaluates, empty for unknown."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    return as_text(value) if isinstance(value, str) else value


def write(stored: StoredRun, directory: Path) -> Exported:
    """Write one CSV a table, read it back and compare its rows and the sums of its numbers."""
    directory.mkdir(parents=True, exist_ok=True)
    tables, notes = tables_of(RunSummary(stored))
    pending = []
    try:
        for name, table in tables.items():
            path = directory / f"{name}.csv"
            temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
            pending.append((temporary, path))
            with temporary.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(table.columns)
                # As objects: a numpy row would turn integers into floats.
                rows = zip(*(table[column].tolist() for column in table), strict=True)
                writer.writerows([cell(value) for value in row] for row in rows)
            _verify(temporary, name, table)
        for temporary, path in pending:
            os.replace(temporary, path)
    finally:
        for temporary, _ in pending:
            temporary.unlink(missing_ok=True)
    return Exported(files=[path for _, path in pending], notes=notes)


def _verify(path: Path, name: str, table: pd.DataFrame) -> None:
    read = pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False)
    if list(read.columns) != list(table.columns) or len(read) != len(table):
        raise ExportMismatch(
            f"{name}.csv reads back {len(read)} rows of {list(read.columns)}, "
            f"the run has {len(table)} of {list(table.columns)}"
        )
    for column in table.select_dtypes("number"):
        wanted = table[column].sum()
        found = pd.to_numeric(read[column]).sum()
        if not math.isclose(float(wanted), float(found), rel_tol=1e-12):
            raise ExportMismatch(f"{name}.csv: column {column} adds up to {found}, not {wanted}")


RUN_EXPORTERS.add("csv", RunExporter(name="csv", summary="one file a table", write=write))
