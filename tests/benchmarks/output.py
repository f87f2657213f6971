"""The table and the JSON document, and the machine they were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.benchmarks.rows import Row


@dataclass(frozen=True, slots=True)
class Result:
    """One row as measured. `ratio` is None where there is none; `note` says why."""

    row: Row
    ratio: float | None
    low: float | None
    high: float | None
    holds: bool | None
    note: str

    def document(self) -> dict[str, Any]:
        side = "at least" if self.row.at_least else "at most"
        return {
            "name": self.row.name,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "limit": self.row.limit,
            "holds": self.holds,
            "unit": f"{self.row.unit}, must be {side} the limit",
            "note": self.note,
        }


def machine() -> dict[str, Any]:
    """What the ratios depend on besides the code."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        "os": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": {p: importlib.metadata.version(p) for p in ("torch", "jax", "jaxlib")},
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def print_table(results: list[Result], described: dict[str, Any]) -> None:
    """The results for a person, on standard output."""
    console = Console(width=None if os.isatty(1) else 100)
    table = Table(
        title=f"{described['cpu']}, {described['cores']} cores", title_justify="left", box=None
    )
    table.add_column("what", ratio=1)
    for heading in ("ratio", "95 % interval", "must be", "holds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        sign = "≥" if result.row.at_least else "≤"
        table.add_row(
            result.row.what,
            "–" if result.ratio is None else f"{result.ratio:.3f}",
            "" if result.low is None else f"{result.low:.3f} – {result.high:.3f}",
            f"{sign} {result.row.limit:g}",
            {True: "yes", False: "[bold red]no[/]", None: "?"}[result.holds],
        )
    console.print(table)
    for result in results:
        console.print(f"[dim]{result.row.name}:[/] {escape(result.note)}", highlight=False)
