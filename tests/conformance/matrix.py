"""The matrix of a run: counts against what is expected, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.conformance.cells import CHECKS, DTYPES, MODES, Result
from tests.conformance.expected import Expectations


@dataclass(frozen=True, slots=True)
class Outcome:
    """A result beside what was expected of it."""

    result: Result
    reason: str | None
    #: Whether all samples ran: of a few, those that fail may not be among them.
    complete: bool = True

    @property
    def kind(self) -> str:
        """passed, failed, xfailed or xpassed."""
        if self.result.status == "failed":
            return "failed" if self.reason is None else "xfailed"
        return "passed" if self.reason is None or not self.complete else "xpassed"

    @property
    def works(self) -> bool:
        return self.result.status == "passed"


class Matrix:
    """Outcomes of all cells that torch has."""

    def __init__(
        self, results: Sequence[Result], expectations: Expectations, every_sample: bool = True
    ) -> None:
        self.outcomes = [
            Outcome(r, expectations.reason(r.cell), every_sample)
            for r in results
            if r.status != "absent"
        ]

    @property
    def problems(self) -> list[Outcome]:
        """Failures nobody expects, and expected failures that passed."""
        return [o for o in self.outcomes if o.kind in ("failed", "xpassed")]

    def count(self, kind: str) -> int:
        return sum(o.kind == kind for o in self.outcomes)

    def share(
        self, mode: str | None = None, check: str | None = None, dtype: str | None = None
    ) -> dict[str, Any]:
        """Cells, cells that passed and their share, of a mode, a check and a dtype or of all."""
        works = [
            o.works
            for o in self.outcomes
            if mode in (None, o.result.cell.mode)
            and check in (None, o.result.cell.check)
            and dtype in (None, o.result.cell.dtype)
        ]
        return {
            "cells": len(works),
            "passed": sum(works),
            "share": sum(works) / len(works) if works else None,
        }

    def as_json(self) -> dict[str, Any]:
        """The document: counts are of cells, `samples` of single comparisons."""
        return {
            "ops": len({o.result.cell.op for o in self.outcomes}),
            "cells": len(self.outcomes),
            "samples": sum(o.result.samples for o in self.outcomes),
            "passed": self.count("passed"),
            "xfailed": self.count("xfailed"),
            "failed": self.count("failed"),
            "xpassed": self.count("xpassed"),
            "by_mode": {
                mode: {
                    **self.share(mode),
                    "float32_forward": self.share(mode, "forward", "float32"),
                    "float32_gradient": self.share(mode, "gradient", "float32"),
                    "forward": self.share(mode, "forward"),
                }
                for mode in MODES
            },
            "by_dtype": {d: self.share(dtype=d) for d in DTYPES},
            "by_check": {c: self.share(check=c) for c in CHECKS},
        }

    def store(self, directory: Path) -> None:
        """Write `matrix.json` (counts and every cell) and `matrix.md` (op x dtype x mode)."""
        directory.mkdir(parents=True, exist_ok=True)
        document = {
            **self.as_json(),
            "matrix": [
                {**o.result.as_json(), "outcome": o.kind, "reason": o.reason} for o in self.outcomes
            ],
        }
        (directory / "matrix.json").write_text(json.dumps(document, indent=1) + "\n")
        (directory / "matrix.md").write_text(self._markdown(), encoding="utf-8")

    def _markdown(self) -> str:
        """A row an op and mode, a column a dtype; a mark for each check that ran."""
        marks: dict[tuple[str, str], dict[str, str]] = {}
        for o in sorted(self.outcomes, key=lambda o: CHECKS.index(o.result.cell.check)):
            cell = o.result.cell
            row = marks.setdefault((cell.op, cell.mode), {})
            letter = cell.check[0]
            row[cell.dtype] = row.get(cell.dtype, "") + (
                letter if o.works else f"**{letter.upper()}**"
            )
        lines = [
            "A letter a check that ran: "
            + ", ".join(f"{c[0]} {c}" for c in CHECKS)
            + ". Bold capitals failed.",
            "",
            "| op | mode | " + " | ".join(DTYPES) + " |",
            "|---" * (2 + len(DTYPES)) + "|",
        ]
        for (op, mode), row in sorted(marks.items()):
            lines.append(f"| {op} | {mode} | " + " | ".join(row.get(d, "") for d in DTYPES) + " |")
        return "\n".join(lines) + "\n"

    def print(self, console: Console) -> None:
        """The summary: shares by mode and dtype, then what nobody expected."""
        table = Table(title="Cells that agree with torch on the CPU", title_justify="left")
        table.add_column("")
        for mode in MODES:
            table.add_column(mode, justify="right")
        rows: list[tuple[str, str | None, str | None]] = [
            *((f"{c}, float32", c, "float32") for c in CHECKS),
            *((f"forward, {d}", "forward", d) for d in DTYPES[1:]),
            ("forward, all dtypes", "forward", None),
            ("everything", None, None),
        ]
        for name, check, dtype in rows:
            shares = [self.share(mode, check, dtype) for mode in MODES]
            if any(s["cells"] for s in shares):
                table.add_row(name, *(_share_text(s) for s in shares))
        console.print(table)
        document = self.as_json()
        console.print(
            f"{document['ops']} ops, {document['cells']} cells, {document['samples']} samples: "
            f"{document['passed']} cells passed, {document['xfailed']} failed as expected, "
            f"{document['failed']} failed, {document['xpassed']} passed against expectation"
        )
        for o in self.problems:
            cell = o.result.cell
            what = o.result.message if o.kind == "failed" else f"passed; expected: {o.reason}"
            console.print(
                f"{o.kind} {cell.op} {cell.dtype} {cell.mode} {cell.check}: {what}",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip


def _share_text(share: dict[str, Any]) -> str:
    if not share["cells"]:
        return "-"
    return f"{share['passed']}/{share['cells']} {100 * share['share']:.1f} %"
