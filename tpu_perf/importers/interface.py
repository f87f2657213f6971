"""What an importer offers: it recognises a file and fills a run directory from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpu_perf.record.store import RunWriter
from tpu_perf.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What the importer found. `counts` says what was read and what was kept without being
    understood: name -> number of events. `notes` are sentences for the run's warnings."""

    source: str  # "XPlane of 2 device planes, TPU v6 lite"
    device_kind: str
    device_count: int
    hostname: str
    versions: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """`recognises` looks at a path (a file, or for some formats a directory) without reading all
    of it. `read` writes events, steps, programs and details through the writer; it raises
    ImportProblem for a damaged file and writes run.json itself never: the caller does."""

    name: str
    summary: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, RunWriter], Imported]


IMPORTERS: Registry[Importer] = Registry("importer", "tpu_perf.importers")
