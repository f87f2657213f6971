"""The ladder on the terminal, readable at 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tpu_perf.analysis import quantities
from tpu_perf.analysis.ladder_metrics import completed
from tpu_perf.analysis.model_flops import peak_notes
from tpu_perf.analysis.program_cache import flush_table
from tpu_perf.analysis.rung_record import RungRecord
from tpu_perf.export.html import FILE_NAME as REPORT_FILE
from tpu_perf.export.report import sharding_tables
from tpu_perf.export.terminal_table import (
    COLUMNS,
    DETAILS,
    NAME_WIDTH,
    SHARDING,
    Column,
    MetricTable,
    emit,
    printable,
    wrapped,
)
from tpu_perf.record.ladder import Ladder

WIDTH = 100


def render_ladder(directory: Path, console: Console) -> None:
    """Print the stored ladder: tables, why, warnings, and where the report lies."""
    ladder, rungs = completed(directory)
    width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    emit(console, Text.assemble(("ladder ", "dim"), (printable(ladder.name), "bold")))
    table = MetricTable(COLUMNS, rungs, width, status=True)
    table.print(console, ladder.baseline)
    emit(console, Text("-" * width, style="dim"))
    details = MetricTable(DETAILS, rungs, width, status=False)
    if any(rung.ok for rung in rungs):
        details.print(console, ladder.baseline)
        emit(console, Text("-" * width, style="dim"))
    spread = [rung for rung in rungs if rung.ok and rung.value("collectives_per_step") is not None]
    over_mesh = MetricTable(SHARDING, spread, width, status=False)
    if spread:
        over_mesh.print(console, ladder.baseline)
        emit(console, Text("-" * width, style="dim"))
    hidden = [*table.hidden, *details.hidden, *over_mesh.hidden]
    _legend(console, hidden, rungs, ladder, width)
    moved = [(rung.name, "; ".join(sharding_tables.moved_lines(rung))) for rung in spread]
    _sentences(console, "moved between devices per step", moved, width)
    _sentences(console, "why", [(r.name, r.why) for r in rungs if r.why], width)
    _sentences(console, "flushes per step", _flushes(rungs), width)
    _sentences(console, "warnings", _warnings(ladder, rungs), width)
    report = directory.resolve() / REPORT_FILE
    where = str(report) if report.exists() else f"{report} (not written yet)"
    emit(console, Text.assemble(("\nreport  ", "bold"), where))


def _legend(
    console: Console,
    hidden: list[Column],
    rungs: list[RungRecord],
    ladder: Ladder,
    width: int,
) -> None:
    notes = [
        "m measured, d derived, p predicted, a assumed; 95 % intervals under time and speed-up",
        *peak_notes(rungs),
    ]
    if hidden:
        names = ", ".join(" ".join(column.title).strip() for column in hidden)
        notes.append(f"hidden, the screen is narrow: {names}")
    if ladder.finished_at is None:
        notes.append(
            "this ladder did not finish; run it again with --resume to fill what is missing"
        )
    for note in notes:
        wrapped(console, note, width, indent=0, style="dim")


def _flushes(rungs: list[RungRecord]) -> list[tuple[str, str]]:
    """How often each reason cut a deferred segment, in a mean timed step."""
    out = []
    for rung in rungs:
        if rung.ok and rung.tables is not None:
            per_step = flush_table(rung.tables)["flushes_per_step"].items()
            reasons = [
                f"{reason} {quantities.digits(float(number))}" for reason, number in per_step
            ]
            if reasons:
                out.append((rung.name, ", ".join(reasons)))
    return out


def _warnings(ladder: Ladder, rungs: list[RungRecord]) -> list[tuple[str, str]]:
    of_ladder = [("ladder", warning) for warning in ladder.warnings]
    return of_ladder + [(rung.name, warning) for rung in rungs for warning in rung.warnings]


def _sentences(
    console: Console, title: str, pairs: Iterable[tuple[str, str | None]], width: int
) -> None:
    pairs = list(pairs)
    if not pairs:
        return
    emit(console, Text(f"\n{title}", style="bold"))
    for name, sentence in pairs:
        name, sentence = printable(name), printable(sentence or "")
        lines = textwrap.wrap(sentence, width - NAME_WIDTH - 3, break_on_hyphens=False)
        if len(name) > NAME_WIDTH:
            emit(console, Text(f"  {name}", style="bold"))
            name = ""
        for index, line in enumerate(lines or [""]):
            label = name if index == 0 else ""
            emit(console, Text.assemble((f"  {label:<{NAME_WIDTH}} ", "bold"), line))
