"""Comparisons and gates on the terminal, readable at 100 columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from tpu_perf.analysis.gate import Gate
from tpu_perf.analysis.ladder_comparison import LadderComparison
from tpu_perf.analysis.run_comparison import RunComparison
from tpu_perf.export.analysis_table import print_cells
from tpu_perf.export.comparison import rows
from tpu_perf.export.terminal import WIDTH
from tpu_perf.export.terminal_table import emit, printable, wrapped


def render_comparison(comparison: LadderComparison, console: Console, top: int) -> None:
    """Print a comparison: a table of metrics a rung, what moved, and what to know."""
    width = _width(console)
    for run in comparison.rungs:
        _render_run(run, console, top, width)
    wrapped(console, rows.LEGEND, width, indent=0, style="dim")
    _list(console, "rungs that could not be compared", rows.unmatched(comparison), width)


def _render_run(run: RunComparison, console: Console, top: int, width: int) -> None:
    emit(console, Text(printable(run.name), style="bold"))
    print_cells(console, rows.METRIC_HEAD, list(rows.metric_rows(run)), width)
    moved = rows.moved_rows(run, top)
    if moved:
        emit(console, Text("  time that moved, per step", style="bold"))
        print_cells(console, rows.MOVED_HEAD, moved, width)
    for note in rows.notes(run):
        style = "bold yellow" if note.startswith("FORCED") else "yellow"
        wrapped(console, note, width, indent=2, style=style)
    emit(console, Text(""))


def render_gate(gate: Gate, console: Console) -> None:
    """Print a gate's outcome, its checks, and what each rests on."""
    width = _width(console)
    style = "bold red" if gate.exit_code else "bold green"
    wrapped(console, rows.headline(gate), width, indent=0, style=style)
    print_cells(console, rows.GATE_HEAD, list(rows.gate_rows(gate)), width)
    _list(console, "checks", (rows.sentences(check) for check in gate.checks), width)
    for comparison in gate.comparisons:
        _list(console, "rungs that were not gated", rows.unmatched(comparison), width)


def _width(console: Console) -> int:
    return min(console.width, WIDTH) if console.is_terminal else WIDTH


def _list(console: Console, title: str, sentences: Iterable[str], width: int) -> None:
    for number, sentence in enumerate(sentences):
        if number == 0:
            emit(console, Text(f"\n{title}", style="bold"))
        wrapped(console, sentence, width, indent=2)
