"""Tables of metrics on the terminal: a rung per row, a line below it for intervals or a reason."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass

from rich.console import Console
from rich.text import Text

from tpu_perf.analysis import quantities
from tpu_perf.analysis.rung_record import RungRecord

NAME_WIDTH = 14
STATUS_WIDTH = 7
MAX_REASON_LINES = 8
STATUS_STYLES = {"ok": "green", "skipped": "yellow"}


@dataclass(frozen=True, slots=True)
class Column:
    """One metric of a table. Columns with a higher `rank` go first when the screen is narrow."""

    metric: str
    title: tuple[str, str]
    _: KW_ONLY
    rank: int
    with_interval: bool = False


COLUMNS = (
    Column("step_time", ("step", "time"), rank=0, with_interval=True),
    Column("speedup", ("speed-up", ""), rank=1, with_interval=True),
    Column("tokens_per_second", ("tokens", "/s"), rank=5),
    Column("mfu", ("MFU", ""), rank=2),
    Column("hbm_peak_bytes", ("HBM", "peak"), rank=4),
    Column("compile_time", ("compile", ""), rank=3),
    Column("cache_requests_per_step", ("progs", "/step"), rank=6),
    Column("cache_hit_rate", ("cache", "hits"), rank=8),
    Column("loss_max_abs_diff", ("loss", "diff"), rank=7),
)
DETAILS = (
    Column("host_time_per_step", ("host", "/step"), rank=0),
    Column("device_time_per_step", ("device", "/step"), rank=1),
    Column("first_step_time", ("first", "step"), rank=2),
    Column("warmup_time", ("warm-", "up"), rank=3),
    Column("compile_count", ("com-", "piles"), rank=7),
    Column("programs", ("pro-", "grams"), rank=8),
    Column("hbm_boundary_bytes_per_step", ("bytes", "in+out"), rank=4),
    Column("hbm_accessed_bytes_per_step", ("accessed", "/step"), rank=9),
    Column("grad_norm_max_rel_diff", ("grad", "diff"), rank=6),
    Column("recorder_overhead", ("rec.", "cost"), rank=5),
    Column("model_flops_per_step", ("model", "FLOPs"), rank=10),
)
#: Shown where a rung runs on several devices.
SHARDING = (
    Column("scaling_efficiency", ("scaling", "eff."), rank=0),
    Column("collectives_per_step", ("collec-", "tives"), rank=1),
    Column("collective_bytes_per_step", ("moved", "/step"), rank=2),
    Column("collective_sent_bytes_per_step", ("sent", "/device"), rank=3),
    Column("collective_exposed_time", ("exposed", "/step"), rank=4),
    Column("collective_hidden_time", ("hidden", "/step"), rank=5),
    Column("replicated_bytes", ("state", "copied"), rank=6),
)


def emit(console: Console, text: Text) -> None:
    """Print a line as it is: no wrapping by rich, no markup, no highlighting of user text."""
    console.print(text, soft_wrap=True, highlight=False)


def printable(text: str) -> str:
    """Text of others without what would move the cursor or colour the screen."""
    return "".join(char if char.isprintable() else " " for char in text)


def wrapped(console: Console, text: str, width: int, indent: int, style: str = "") -> None:
    """Print each line of the text, wrapped; what goes on for pages is cut."""
    lines = [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(printable(line), width - indent, break_on_hyphens=False)
    ]
    if len(lines) > MAX_REASON_LINES:
        lines = [*lines[:MAX_REASON_LINES], "..."]
    for line in lines:
        emit(console, Text(" " * indent + line, style=style))


def provenance_letters(rungs: Iterable[RungRecord], metric: str) -> set[str]:
    found = (rung.metric(metric).provenance for rung in rungs)
    return {provenance[0] for provenance in found if provenance}


class MetricTable:
    """Prints the columns that fit into `width`. With `status`, failed rungs are rows too."""

    def __init__(
        self, columns: tuple[Column, ...], rungs: list[RungRecord], width: int, *, status: bool
    ) -> None:
        self._rungs = rungs if status else [rung for rung in rungs if rung.ok]
        self._screen = width
        self._status = status
        self._letters = {c.metric: provenance_letters(rungs, c.metric) for c in columns}
        self._widths = {column.metric: self._width(column) for column in columns}
        self._gap = "  "
        self.columns = self._fitting(columns)
        if self.columns != columns:  # closer together rather than fewer
            self._gap = " "
            self.columns = self._fitting(columns)
        self.hidden = tuple(column for column in columns if column not in self.columns)

    def _titles(self, column: Column) -> tuple[str, str, str]:
        letters = "".join(sorted(self._letters[column.metric]))
        return (*column.title, f"({letters})" if letters else "")

    def _width(self, column: Column) -> int:
        """Wide enough for every number in it: none is ever cut."""
        cells = [self._cell(rung, column) for rung in self._rungs]
        return max(len(text) for texts in (self._titles(column), *cells) for text in texts)

    def _fitting(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        """The columns that fit, in table order, the most important ones kept."""
        used = NAME_WIDTH + (len(self._gap) + STATUS_WIDTH if self._status else 0)
        kept = set()
        for column in sorted(columns, key=lambda column: column.rank):
            used += len(self._gap) + self._widths[column.metric]
            if used > self._screen:
                break
            kept.add(column.metric)
        return tuple(column for column in columns if column.metric in kept)

    def print(self, console: Console, baseline: str) -> None:
        self._header(console)
        for rung in self._rungs:
            self._row(console, rung, baseline)

    def _header(self, console: Console) -> None:
        lines = [["rung".ljust(NAME_WIDTH)], [" " * NAME_WIDTH], [" " * NAME_WIDTH]]
        if self._status:
            for line, text in zip(lines, ("status", "", ""), strict=True):
                line.append(text.ljust(STATUS_WIDTH))
        for column in self.columns:
            for line, text in zip(lines, self._titles(column), strict=True):
                line.append(text.rjust(self._widths[column.metric]))
        for line in lines:
            emit(console, Text(self._gap.join(line).rstrip(), style="bold"))
        emit(console, Text(self._gap.join("-" * len(cell) for cell in lines[0]), style="dim"))

    def _cell(self, rung: RungRecord, column: Column) -> tuple[str, str]:
        """Value and, on the line below, its interval. The letter of its provenance stands in
        the header, and beside the value only where the column mixes several."""
        metric = rung.metric(column.metric)
        value = quantities.text(column.metric, metric)
        if metric.provenance and len(self._letters[column.metric]) > 1:
            value += metric.provenance[0]
        return value, quantities.interval(column.metric, metric) if column.with_interval else ""

    def _row(self, console: Console, rung: RungRecord, baseline: str) -> None:
        names = textwrap.wrap(printable(rung.name), NAME_WIDTH, break_on_hyphens=False) or [""]
        if self._status and rung.name == baseline:
            names.append("  (baseline)")
        statuses = textwrap.wrap(rung.status.replace("_", " "), STATUS_WIDTH)
        cells = [self._cell(rung, column) for column in self.columns] if rung.ok else []
        columns = list(zip(self.columns, cells, strict=False))
        style = STATUS_STYLES.get(rung.status, "red")
        height = max(len(names), len(statuses), 2 if any(low for _, low in cells) else 1)
        for index in range(height):
            first = index == 0
            line = Text(_at(names, index).ljust(NAME_WIDTH), style="bold" if first else "dim")
            if self._status:
                line.append(self._gap + _at(statuses, index).ljust(STATUS_WIDTH), style=style)
            for column, cell in columns:
                text = self._gap + _at(cell, index).rjust(self._widths[column.metric])
                line.append(text, style="not bold" if first else "dim")
            line.rstrip()
            emit(console, line)
        if rung.reason:
            wrapped(console, rung.reason, self._screen, indent=4, style=style)


def _at(lines: list[str] | tuple[str, ...], index: int) -> str:
    return lines[index] if index < len(lines) else ""
