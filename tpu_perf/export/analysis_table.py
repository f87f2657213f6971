"""Rows of measures, and of plain cells, on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from tpu_perf.analysis import quantities
from tpu_perf.analysis.op_table import OpTable, TableRow
from tpu_perf.export.terminal_table import emit, printable
from tpu_perf.record.metric import Metric

Cells = tuple[str, ...]

#: Measure -> its title in two lines and its rank: those of higher rank go first on narrow screens.
_COLUMNS: dict[str, tuple[str, str, int]] = {
    "calls": ("calls", "", 4),
    "runs": ("runs", "", 7),
    "host_time": ("host", "time", 1),
    "device_time": ("device", "time", 0),
    "share": ("share", "of step", 2),
    "model_flops": ("model", "FLOP", 3),
    "hardware_flops": ("hardware", "FLOP", 5),
    "accessed_bytes": ("XLA", "bytes", 9),
    "boundary_bytes": ("in+out", "bytes", 6),
    "intensity": ("FLOP", "/byte", 10),
    "roofline": ("of", "roof", 8),
}
_LEAST_LABEL, _MOST_LABEL = 20, 44
_GAP = " "


def print_table(console: Console, table: OpTable, width: int, top: int) -> list[str]:
    """Print the table; return the reasons of what it shows as `-`, and what it left out."""
    shown = [*table.rows[:top], table.total]
    letters = {name: _letters(shown, name) for name in _COLUMNS}
    cells = {
        name: [_text(name, row, mixed=len(letters[name]) > 1) for row in shown] for name in _COLUMNS
    }
    headings = {
        name: (*_COLUMNS[name][:2], f"({letters[name]})" if letters[name] else "")
        for name in _COLUMNS
    }
    widths = {n: max(map(len, (*headings[n], *cells[n]))) for n in _COLUMNS}
    label = min(_MOST_LABEL, max(_LEAST_LABEL, *(len(row.label) for row in shown)))
    kept, hidden = _fitting(widths, width - label)
    if hidden:
        label = _LEAST_LABEL
        kept, hidden = _fitting(widths, width - label)
    for line in range(3):
        title = (table.by, "", "")[line]
        text = _GAP.join([title.ljust(label), *(headings[n][line].rjust(widths[n]) for n in kept)])
        emit(console, Text(text.rstrip(), style="bold"))
    for index, row in enumerate(shown):
        last = index == len(shown) - 1
        if last:
            emit(console, Text("-" * width, style="dim"))
        name = shortened(printable(row.label), label).ljust(label)
        values = [cells[n][index].rjust(widths[n]) for n in kept]
        emit(console, Text(_GAP.join([name, *values]).rstrip(), style="bold" if last else ""))
    return _footnotes(table, shown, kept, hidden, top)


def _fitting(widths: dict[str, int], room: int) -> tuple[list[str], list[str]]:
    kept: set[str] = set()
    for name in sorted(_COLUMNS, key=lambda name: _COLUMNS[name][2]):
        room -= len(_GAP) + widths[name]
        if room < 0:
            break
        kept.add(name)
    return [n for n in _COLUMNS if n in kept], [n for n in _COLUMNS if n not in kept]


def _letters(rows: Sequence[TableRow], name: str) -> str:
    found = {row.measures[name].provenance for row in rows}
    return "".join(sorted(provenance[0] for provenance in found if provenance))


def _text(name: str, row: TableRow, *, mixed: bool) -> str:
    metric = row.measures[name]
    if metric.value is None:
        return "-"
    text = _short(metric)
    if name == "roofline" and row.bound != "unknown":
        text += f" {row.bound[:3]}"
    return text + ((metric.provenance or "?")[0] if mixed else "")


def _short(metric: Metric) -> str:
    """A figure in as few columns as three digits take."""
    assert metric.value is not None
    match metric.unit:
        case "FLOP":
            return quantities.scaled(metric.value, "")
        case "count":
            return quantities.digits(metric.value) if metric.value % 1 else f"{metric.value:,.0f}"
        case "FLOP/byte":
            return quantities.digits(metric.value)
        case "bytes":
            return quantities.byte_count(metric.value).replace("iB", "i").replace(" B", "")
    return quantities.text("", metric)


def _footnotes(
    table: OpTable, shown: Sequence[TableRow], kept: Sequence[str], hidden: Sequence[str], top: int
) -> list[str]:
    reasons = dict.fromkeys(
        f"{' '.join(_COLUMNS[name][:2]).strip()}: {row.measures[name].reason}"
        for name in kept
        for row in shown
        if row.measures[name].value is None
        # No product, no intensity: nothing is missing there.
        and not (name in ("roofline", "intensity") and row.measures["hardware_flops"].value == 0)
    )
    out = list(reasons)
    if "share" in kept:
        out.append(f"share of step is that of {table.share_of}")
    if len(table.rows) > top:
        out.append(f"{len(table.rows) - top:,} rows more with a larger --top")
    if hidden:
        names = ", ".join(" ".join(_COLUMNS[name][:2]).strip() for name in hidden)
        out.append(f"hidden, the screen is narrow (--json has them): {names}")
    return out


def shortened(text: str, width: int) -> str:
    """The text, its middle left out where it is longer."""
    if len(text) <= width:
        return text
    head = (width - 2) // 2
    return f"{text[:head]}..{text[len(text) - (width - 2 - head) :]}"


def print_cells(console: Console, titles: Cells, rows: Sequence[Cells], width: int) -> None:
    """A small table of texts; the widest columns are shortened until a line fits."""
    if not rows:
        return
    lines = [titles, *(tuple(printable(cell) for cell in row) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(titles))]
    room = width - 2 - 2 * (len(widths) - 1)
    while sum(widths) > room and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    for number, line in enumerate(lines):
        cells = [shortened(c, w).ljust(w) for c, w in zip(line, widths, strict=True)]
        emit(console, Text("  " + "  ".join(cells).rstrip(), style="" if number else "dim"))
