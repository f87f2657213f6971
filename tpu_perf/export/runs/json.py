"""Exporter `json` of a run: one document with its facts and its tables, for programs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pandas as pd

from tpu_perf.analysis.run_summary import RunSummary
from tpu_perf.errors import ExportMismatch
from tpu_perf.export.run_interface import RUN_EXPORTERS, Exported, RunExporter
from tpu_perf.export.runs.csv import tables_of
from tpu_perf.record.store import StoredRun, write_json

DOCUMENT_SCHEMA_VERSION = 1
FILE_NAME = "run_document.json"


def run_document(stored: StoredRun) -> dict[str, Any]:
    """`schema_version`, `run` (run.json as stored), `tables` (a list of objects each; null is
    unknown) and `notes`."""
    tables, notes = tables_of(RunSummary(stored))
    return {
        "schema_version": DOCUMENT_SCHEMA_VERSION,
        "run": stored.run.to_json(),
        "tables": {name: _rows(table) for name, table in tables.items()},
        "notes": notes,
    }


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    columns = [[_value(value) for value in table[name].tolist()] for name in table]
    names = [str(name) for name in table]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _value(value: Any) -> Any:
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def write(stored: StoredRun, directory: Path) -> Exported:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE_NAME
    checked = path.with_name(f"{FILE_NAME}.{os.getpid()}.checked.tmp")
    document = run_document(stored)
    try:
        write_json(checked, document)
        if json.loads(checked.read_text(encoding="utf-8")) != json.loads(json.dumps(document)):
            raise ExportMismatch(f"{FILE_NAME} does not read back as what was written")
        os.replace(checked, path)
    finally:
        checked.unlink(missing_ok=True)
    return Exported(files=[path], notes=document["notes"])


RUN_EXPORTERS.add(
    "json", RunExporter(name="json", summary="facts and tables, one document", write=write)
)
