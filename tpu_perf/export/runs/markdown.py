"""Exporter `markdown` of a run: a summary short enough for a pull request."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from tpu_perf.analysis import quantities
from tpu_perf.analysis.run_summary import RunSummary
from tpu_perf.errors import ExportMismatch
from tpu_perf.export.markdown import escaped
from tpu_perf.export.report.rung_tables import TITLES, cell
from tpu_perf.export.run_interface import RUN_EXPORTERS, Exported, RunExporter
from tpu_perf.record.metric import METRIC_UNITS
from tpu_perf.record.store import StoredRun

FILE_NAME = "run.md"
ROWS = 10
NS = 1e-9


def document(summary: RunSummary) -> str:
    run = summary.stored.run
    reason = f": {escaped(run.reason)}" if run.reason else ""
    lines = [f"### {escaped(run.plan.ladder)} / {escaped(run.plan.rung)}: {run.status}{reason}", ""]
    if run.environment is not None:
        versions = ", ".join(f"{n} {v}" for n, v in run.environment.versions.items())
        device = f"device {run.environment.device_kind} x {run.environment.device_count}"
        lines += [escaped("; ".join(part for part in (device, versions) if part)), ""]
    if summary.rung.why:
        lines += [escaped(summary.rung.why), ""]
    lines += _metrics(summary)
    total = float(summary.ops("ops")["self_ns"].sum())
    for title, name, keys in (("op", "ops", ["op"]), ("module", "modules", ["module"])):
        table = summary.ops(name)
        if not table.empty:
            lines += ["", f"#### Host time of dispatch by {title}, {escaped(summary.counted)}", ""]
            lines += _ops(title, table, keys, total)
    holders = summary.peak_holders
    if not holders.empty:
        lines += ["", "#### Alive at the peak of device memory", ""]
        rows = [
            (escaped(row["category"]), escaped(row["name"]), quantities.byte_count(row["bytes"]))
            for row in holders.head(ROWS).to_dict("records")
        ]
        lines += table_lines(("what", "name", "bytes"), rows, left=2)
        lines += _cut(len(holders))
    if summary.rung.warnings:
        lines += ["", "#### Warnings", "", *(f"- {escaped(w)}" for w in summary.rung.warnings)]
    return "\n".join(lines) + "\n"


def _metrics(summary: RunSummary) -> list[str]:
    rows = []
    for name in METRIC_UNITS:
        shown = cell(name, summary.rung.metric(name))
        if shown.provenance:
            bounds = f" [{shown.interval}]" if shown.interval else ""
            rows.append((TITLES[name], f"{shown.text} {shown.provenance[0]}{bounds}"))
    if not rows:
        return ["No metric is known of this run."]
    legend = "m measured, d derived, p predicted, a assumed; in brackets the 95 % interval."
    return [*table_lines(("metric", "value"), rows, left=1), "", legend]


def _ops(title: str, table: pd.DataFrame, keys: Sequence[str], total: float) -> list[str]:
    rows = []
    for row in table.head(ROWS).to_dict("records"):
        moved = row["bytes"]
        rows.append(
            (
                escaped(" ".join(str(row[key]) for key in keys)) or "(outside any)",
                f"{row['count']:,}",
                quantities.seconds(row["self_ns"] * NS),
                quantities.percent(row["self_ns"] / total) if total else "–",
                "–" if pd.isna(moved) else quantities.byte_count(moved),
            )
        )
    return table_lines((title, "calls", "self time", "share", "bytes"), rows, left=1) + _cut(
        len(table)
    )


def _cut(count: int) -> list[str]:
    return ["", f"{count - ROWS:,} more rows are not shown."] if count > ROWS else []


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> list[str]:
    rule = "|" + " --- |" * left + " ---: |" * (len(head) - left)
    return [f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def write(stored: StoredRun, directory: Path) -> Exported:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE_NAME
    temporary = path.with_name(f"{FILE_NAME}.{os.getpid()}.tmp")
    text = document(RunSummary(stored))
    try:
        temporary.write_text(text, encoding="utf-8")
        if temporary.read_text(encoding="utf-8") != text:
            raise ExportMismatch(f"{FILE_NAME} does not read back as what was written")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(files=[path])


RUN_EXPORTERS.add(
    "markdown", RunExporter(name="markdown", summary="summary for a pull request", write=write)
)
