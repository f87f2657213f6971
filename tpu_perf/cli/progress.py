"""Progress of a running ladder on standard error: a live table, or a line per rung."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tpu_perf.ladder.observer import Observer
from tpu_perf.record.run import Status

_STYLES = {"ok": "green", "skipped": "yellow"}


@contextmanager
def make_observer(rungs: Sequence[str], directory: Path) -> Iterator[Observer]:
    """An observer that suits standard error; a live table only where someone is watching."""
    console = Console(stderr=True)
    console.print(f"ladder directory: {directory}", soft_wrap=True, highlight=False)
    if not console.is_terminal:
        yield Lines(console)
        return
    # No refreshing thread: it would take time from the rung that is being measured.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveTable(live, rungs)


class Lines:
    """One plain line for every rung that ended and for every warning."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def phase(self, rung: str, phase: str) -> None: ...

    def stepped(self, rung: str, phase: str, step: int, seconds: float) -> None: ...

    def sampled(
        self, rung: str, round_number: int, rounds: int, seconds: float | None, remaining_s: float
    ) -> None: ...

    def ended(self, rung: str, status: Status, reason: str | None) -> None:
        self.say(f"{rung}: {status}" + (f" ({reason})" if reason else ""))

    def say(self, message: str) -> None:
        self._console.print(message, soft_wrap=True, highlight=False, markup=False)


class LiveTable:
    """Rung, phase, running median and what is left, redrawn between steps."""

    def __init__(self, live: Live, rungs: Sequence[str]) -> None:
        self._live = live
        self._phases = dict.fromkeys(rungs, "waiting")
        self._medians = dict.fromkeys(rungs, "")
        self._styles: dict[str, str] = {}
        self._current = ""
        self._remaining = ""

    def phase(self, rung: str, phase: str) -> None:
        self._current = rung
        self._phases[rung] = phase
        self._draw()

    def stepped(self, rung: str, phase: str, step: int, seconds: float) -> None:
        self._phases[rung] = f"{phase}, step {step}"
        self._medians[rung] = f"{seconds * 1e3:.1f} ms"
        self._draw()

    def sampled(
        self, rung: str, round_number: int, rounds: int, seconds: float | None, remaining_s: float
    ) -> None:
        self._phases[rung] = f"{round_number} of {rounds} rounds"
        if seconds is not None:
            self._medians[rung] = f"{seconds * 1e3:.1f} ms"
        self._remaining = f"about {remaining_s:.0f} s of sampling left"
        self._draw()

    def ended(self, rung: str, status: Status, reason: str | None) -> None:
        self._phases[rung] = status + (f": {reason}" if reason else "")
        self._styles[rung] = _STYLES.get(status, "red")
        self._draw()

    def say(self, message: str) -> None:
        self._live.console.print(message, soft_wrap=True, highlight=False, markup=False)

    def _draw(self) -> None:
        table = Table(box=None, pad_edge=False, caption=self._remaining, caption_justify="left")
        table.add_column("rung", no_wrap=True)
        table.add_column("phase", no_wrap=True, overflow="ellipsis")
        table.add_column("step", justify="right", no_wrap=True)
        for rung, phase in self._phases.items():
            style = self._styles.get(rung, "bold" if rung == self._current else "dim")
            table.add_row(rung, phase, self._medians.get(rung, ""), style=style)
        self._live.update(table, refresh=True)
