"""What an exporter offers, and the registry that finds one per file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tpu_perf.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """Turns a ladder directory into one file inside it, and returns that file's path. `needs`: an
    optional package without which it raises EnvironmentProblem."""

    name: str
    summary: str
    write: Callable[[Path], Path]
    needs: str | None = None


EXPORTERS: Registry[Exporter] = Registry("exporter", "tpu_perf.export")
