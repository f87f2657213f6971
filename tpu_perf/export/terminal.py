"""The ladder as a table on the terminal, readable at 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tpu_perf.analysis import quantities
from tpu_perf.analysis.ladder_metrics import completed
from tpu_perf.analysis.model_flops import peak_notes
from tpu_perf.analysis.rung_record import RungRecord
from tpu_perf.export.html import FILE_NAME as REPORT_FILE
from tpu_perf.record.ladder import Ladder

WIDTH = 100
NAME_WIDTH = 14
STATUS_WIDTH = 7
GAP = " "
MAX_REASON_LINES = 8
STATUS_STYLES = {"ok": "green", "skipped": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One metric of the table. Columns with a higher `rank` go first when the screen is narrow."""

    metric: str
    title: tuple[str, str]
    width: int
    rank: int


COLUMNS = (
    Column(metric="step_time", title=("step", "time"), width=12, rank=0),
    Column(metric="speedup", title=("speed-up", ""), width=9, rank=1),
    Column(metric="tokens_per_second", title=("tokens", "/s"), width=7, rank=5),
    Column(metric="mfu", title=("MFU", ""), width=6, rank=2),
    Column(metric="hbm_peak_bytes", title=("HBM", "peak"), width=8, rank=4),
    Column(metric="compile_time", title=("compile", ""), width=7, rank=3),
    Column(metric="cache_requests_per_step", title=("progs", "/step"), width=6, rank=6),
    Column(metric="cache_hit_rate", title=("cache", "hits"), width=7, rank=8),
    Column(metric="loss_max_abs_diff", title=("loss", "diff"), width=7, rank=7),
)


def render_ladder(directory: Path, console: Console) -> None:
    """Print the stored ladder: table, why, warnings, and where the report lies."""
    ladder, rungs = completed(directory)
    width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    columns = fitting(width)
    _print(console, Text.assemble(("ladder ", "dim"), (ladder.name, "bold"), f"  {ladder.id}"))
    _header(console, columns, rungs)
    for rung in rungs:
        _row(console, columns, rungs, rung, ladder.baseline, width)
    _print(console, Text("-" * width, style="dim"))
    _legend(console, columns, rungs, ladder, width)
    _sentences(console, "why", [(r.name, r.why) for r in rungs if r.why], width)
    _sentences(console, "warnings", _warnings(ladder, rungs), width)
    report = directory.resolve() / REPORT_FILE
    where = str(report) if report.exists() else f"{report} (not written yet)"
    _print(console, Text.assemble(("\nreport  ", "bold"), where))


def _print(console: Console, text: Text) -> None:
    """Print a line as it is: no wrapping by rich, no markup, no highlighting of user text."""
    console.print(text, soft_wrap=True, highlight=False)


def fitting(width: int) -> tuple[Column, ...]:
    """The columns that fit, in table order, the most important ones kept."""
    used = NAME_WIDTH + len(GAP) + STATUS_WIDTH
    kept = set()
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        used += len(GAP) + column.width
        if used > width:
            break
        kept.add(column.metric)
    return tuple(column for column in COLUMNS if column.metric in kept)


def provenance_letters(rungs: Iterable[RungRecord], metric: str) -> set[str]:
    found = (rung.metric(metric).provenance for rung in rungs)
    return {provenance[0] for provenance in found if provenance}


def _header(console: Console, columns: tuple[Column, ...], rungs: list[RungRecord]) -> None:
    lines = [["rung".ljust(NAME_WIDTH), "status".ljust(STATUS_WIDTH)], [" " * 14, " " * 7]]
    lines.append(list(lines[1]))
    for column in columns:
        letters = "".join(sorted(provenance_letters(rungs, column.metric)))
        for line, text in zip(
            lines, (*column.title, f"({letters})" if letters else ""), strict=True
        ):
            line.append(text.rjust(column.width))
    for line in lines:
        _print(console, Text(GAP.join(line).rstrip(), style="bold"))
    rule = GAP.join("-" * len(cell) for cell in lines[0])
    _print(console, Text(rule, style="dim"))


def _cell(rungs: list[RungRecord], rung: RungRecord, column: Column) -> tuple[str, str]:
    """Value and, on the line below, its interval. The letter of its provenance stands in the
    header, and beside the value only where the column mixes several."""
    metric = rung.metric(column.metric)
    value = quantities.text(column.metric, metric)
    if metric.provenance and len(provenance_letters(rungs, column.metric)) > 1:
        value += metric.provenance[0]
    return value, quantities.interval(column.metric, metric) if column.rank < 2 else ""


def _row(
    console: Console,
    columns: tuple[Column, ...],
    rungs: list[RungRecord],
    rung: RungRecord,
    baseline: str,
    width: int,
) -> None:
    names = textwrap.wrap(printable(rung.name), NAME_WIDTH, break_on_hyphens=False) or [""]
    if rung.name == baseline:
        names.append("  (baseline)")
    statuses = textwrap.wrap(rung.status.replace("_", " "), STATUS_WIDTH)
    cells = [_cell(rungs, rung, column) for column in columns] if rung.ok else []
    height = max(len(names), len(statuses), 2 if any(low for _, low in cells) else 1)
    style = STATUS_STYLES.get(rung.status, "red")
    for index in range(height):
        line = Text(
            _at(names, index).ljust(NAME_WIDTH) + GAP, style="bold" if index == 0 else "dim"
        )
        line.append(_at(statuses, index).ljust(STATUS_WIDTH), style=style)
        for column, cell in zip(columns, cells, strict=False):
            line.append(
                GAP + _at(cell, index).rjust(column.width), style="dim" if index else "not bold"
            )
        line.rstrip()
        _print(console, line)
    if rung.reason:
        _wrapped(console, rung.reason, width, indent=4, style=style)


def _at(lines: list[str] | tuple[str, ...], index: int) -> str:
    return lines[index] if index < len(lines) else ""


def printable(text: str) -> str:
    """Text of others without what would move the cursor or colour the screen."""
    return "".join(char if char.isprintable() else " " for char in text)


def _wrapped(console: Console, text: str, width: int, indent: int, style: str = "") -> None:
    """Print each line of the text, wrapped; what goes on for pages is cut."""
    lines = [
        wrapped
        for line in text.splitlines()
        for wrapped in textwrap.wrap(printable(line), width - indent, break_on_hyphens=False)
    ]
    if len(lines) > MAX_REASON_LINES:
        lines = [*lines[:MAX_REASON_LINES], "..."]
    for line in lines:
        _print(console, Text(" " * indent + line, style=style))


def _legend(
    console: Console,
    columns: tuple[Column, ...],
    rungs: list[RungRecord],
    ladder: Ladder,
    width: int,
) -> None:
    notes = [
        "m measured, d derived, p predicted, a assumed; 95 % intervals under time and speed-up",
        *peak_notes(rungs),
    ]
    if len(columns) < len(COLUMNS):
        hidden = [" ".join(c.title).strip() for c in COLUMNS if c not in columns]
        notes.append(f"hidden, the screen is narrow: {', '.join(hidden)}")
    if ladder.finished_at is None:
        notes.append(
            "this ladder did not finish; run it again with --resume to fill what is missing"
        )
    for note in notes:
        _wrapped(console, note, width, indent=0, style="dim")


def _warnings(ladder: Ladder, rungs: list[RungRecord]) -> list[tuple[str, str]]:
    of_ladder = [("ladder", warning) for warning in ladder.warnings]
    return of_ladder + [(rung.name, warning) for rung in rungs for warning in rung.warnings]


def _sentences(
    console: Console, title: str, pairs: Iterable[tuple[str, str | None]], width: int
) -> None:
    pairs = list(pairs)
    if not pairs:
        return
    _print(console, Text(f"\n{title}", style="bold"))
    for name, sentence in pairs:
        name, sentence = printable(name), printable(sentence or "")
        lines = textwrap.wrap(sentence, width - NAME_WIDTH - 3, break_on_hyphens=False)
        if len(name) > NAME_WIDTH:
            _print(console, Text(f"  {name}", style="bold"))
            name = ""
        for index, line in enumerate(lines or [""]):
            label = name if index == 0 else ""
            _print(console, Text.assemble((f"  {label:<{NAME_WIDTH}} ", "bold"), line))
