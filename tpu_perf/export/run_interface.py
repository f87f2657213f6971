"""What an exporter of one run offers: traces for viewers, tables for other tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpu_perf.record.store import StoredRun
from tpu_perf.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The files that were written, and sentences worth telling (what was split, left out or
    only assumed). `opens_with` is the command or page that shows them."""

    files: Sequence[Path]
    notes: Sequence[str] = ()
    opens_with: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExporter:
    """Writes a run in one format below a directory, and reopens what it wrote with that format's
    real reader: totals that differ raise ExportMismatch."""

    name: str
    summary: str
    write: Callable[[StoredRun, Path], Exported]


RUN_EXPORTERS: Registry[RunExporter] = Registry("run exporter", "tpu_perf.export.runs")
