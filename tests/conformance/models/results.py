"""The results of a run against what is expected: a table by family and mode, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.conformance.models.architectures import FAMILIES
from tests.conformance.models.cells import MODES, ModelCell, ModelResult

_NOT_TRIED = ("not_buildable", "not_on_cpu")


class Results:
    """All results of a run, and the cells that are expected to fail."""

    def __init__(self, results: Sequence[ModelResult], expected: Mapping[ModelCell, str]) -> None:
        self.results = list(results)
        self.expected = expected
        self.untried = {r.cell.architecture: r for r in results if r.status in _NOT_TRIED}
        #: What was compared: every other mode than the CPU's own run.
        self.compared = [
            r for r in results if r.status not in _NOT_TRIED and r.cell.mode != "cpu"
        ]  # fmt: skip

    @property
    def problems(self) -> list[tuple[ModelResult, str]]:
        """Failures that nobody expects, and expected ones that passed."""
        found = []
        for r in self.compared:
            reason = self.expected.get(r.cell)
            if r.status == "failed" and reason is None:
                found.append((r, r.message))
            elif r.status == "passed" and reason is not None:
                found.append((r, f"passed; expected to fail: {reason}"))
        return found

    def _share(self, mode: str, family: str | None = None) -> dict[str, Any]:
        chosen = [
            r for r in self.compared
            if r.cell.mode == mode and family in (None, r.family)
        ]  # fmt: skip
        agree = sum(r.status == "passed" for r in chosen)
        return {"run": len(chosen), "agree": agree,
                "share": agree / len(chosen) if chosen else None}  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        names = {r.cell.architecture for r in self.results}
        return {
            "architectures": len(names),
            "run_on_cpu": len(names - set(self.untried)),
            "agree": {m: self._share(m) for m in MODES},
            "by_family": {f: {m: self._share(m, f) for m in MODES} for f in FAMILIES},
            "failures": [
                {"architecture": r.cell.architecture, "mode": r.cell.mode, "message": r.message,
                 "expected": self.expected.get(r.cell)}
                for r in self.compared if r.status == "failed"
            ],
            "not_buildable": [
                {"architecture": n, "why": r.status, "reason": r.message}
                for n, r in sorted(self.untried.items())
            ],
        }  # fmt: skip

    def store(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        document = {**self.as_json(), "results": [r.as_json() for r in self.results]}
        (directory / "models.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
        with (directory / "models.md").open("w", encoding="utf-8") as file:
            self.print(Console(file=file, width=120))

    def print(self, console: Console) -> None:
        table = Table(title="Models that agree with torch on the CPU, of those that run there")
        table.add_column("family")
        for mode in MODES:
            table.add_column(mode, justify="right")
        for family in FAMILIES:
            shares = [self._share(m, family) for m in MODES]
            if any(s["run"] for s in shares):
                table.add_row(family, *map(_share_text, shares))
        table.add_section()
        table.add_row("all", *(_share_text(self._share(m)) for m in MODES))
        console.print(table)
        document = self.as_json()
        console.print(
            f"{document['architectures']} architectures, {document['run_on_cpu']} run on the CPU, "
            f"{len(self.untried)} do not: see not_buildable in models.json"
        )
        for result, message in self.problems:
            console.print(
                f"{result.cell.architecture} {result.cell.mode}: {message}",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip


def _share_text(share: dict[str, Any]) -> str:
    if not share["run"]:
        return "-"
    return f"{share['agree']}/{share['run']} {100 * share['share']:.1f} %"
