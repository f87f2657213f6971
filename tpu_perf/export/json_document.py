"""Exporter `json`: one document with every metric of every rung, for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tpu_perf.analysis.ladder_metrics import completed
from tpu_perf.analysis.rung_record import RungRecord
from tpu_perf.export.interface import EXPORTERS, Exporter
from tpu_perf.record.metric import METRIC_UNITS
from tpu_perf.record.store import write_json

DOCUMENT_SCHEMA_VERSION = 1
FILE_NAME = "ladder_document.json"


def ladder_document(directory: Path) -> dict[str, Any]:
    """The document behind `--json`. All metrics are present for all rungs; a missing one has a
    null value and a `reason`. `environment` is that of the baseline, or of the first rung that
    ran."""
    ladder, rungs = completed(directory)
    return {
        "schema_version": DOCUMENT_SCHEMA_VERSION,
        "ladder": ladder.name,
        "id": ladder.id,
        "dir": str(directory.resolve()),
        "baseline": ladder.baseline,
        "environment": environment_of(rungs, ladder.baseline),
        "rungs": [
            {
                "name": rung.name,
                "status": rung.status,
                "reason": rung.reason,
                "run": rung.path,
                "metrics": {name: rung.metric(name).to_json() for name in METRIC_UNITS},
            }
            for rung in rungs
        ],
    }


def environment_of(rungs: list[RungRecord], baseline: str) -> dict[str, Any] | None:
    """The baseline's environment if it ran, else that of the first rung that did; that of a rung
    which failed, and may not have reached its device, only if none ran."""
    for rung in sorted(rungs, key=lambda rung: (not rung.ok, rung.name != baseline)):
        if rung.run is not None and rung.run.environment is not None:
            return rung.run.environment.to_json()
    return None


def write(directory: Path) -> Path:
    path = directory / FILE_NAME
    write_json(path, ladder_document(directory))
    return path


EXPORTERS.add("json", Exporter(name="json", summary="every metric, one document", write=write))
