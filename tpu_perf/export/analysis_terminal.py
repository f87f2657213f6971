"""The analysis of a run on the terminal, readable at 100 columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from rich.console import Console
from rich.text import Text

from tpu_perf.analysis import quantities
from tpu_perf.analysis.buffer_lifetimes import GROUPS
from tpu_perf.analysis.device_idle import CAUSES
from tpu_perf.analysis.run_analysis import RunAnalysis
from tpu_perf.export.analysis_table import Cells, print_cells, print_table
from tpu_perf.export.terminal import WIDTH
from tpu_perf.export.terminal_table import emit, printable, wrapped
from tpu_perf.record.metric import Metric

_BARS = " ▁▂▃▄▅▆▇█"
#: Figures of a whole step, by their names in RunAnalysis.step.
TITLES = {
    "step_time": "step time (median)",
    "device_time": "device time per step",
    "host_time": "host time in dispatches",
    "model_flops": "model FLOPs per step",
    "hardware_flops": "hardware FLOPs per step",
    "mfu": "MFU (model FLOPs)",
    "hfu": "HFU (hardware FLOPs)",
    "reference_model_flops": "torch's counter, for comparison",
}


def render_analysis(analysis: RunAnalysis, console: Console, top: int, *, memory: bool) -> None:
    """Print the analysis; `memory` adds what is alive at the peak."""
    width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    page = _Page(console, width)
    run = analysis.stored.run
    emit(console, Text.assemble(("run ", "dim"), (printable(run.plan.rung), "bold"),
                                (f"  {analysis.variation.steps} steady steps", "dim")))  # fmt: skip
    page.figures({TITLES[name]: metric for name, metric in analysis.step.items()})
    page.title(f"by {analysis.table.by}, per steady step")
    page.reasons(print_table(console, analysis.table, width, top))
    _traffic(page, analysis)
    _idle(page, analysis, top)
    _variation(page, analysis, top)
    _recompiles(page, analysis, top)
    _syncs(page, analysis, top)
    if memory:
        _memory(page, analysis, top)
    page.close(analysis)


class _Page:
    """Prints titles and figures, and keeps the reasons of what is missing for the end."""

    def __init__(self, console: Console, width: int) -> None:
        self.console = console
        self.width = width
        self._reasons: dict[str, None] = {}

    def title(self, text: str) -> None:
        emit(self.console, Text(f"\n{text}", style="bold"))

    def line(self, text: str, style: str = "") -> None:
        wrapped(self.console, text, self.width, indent=2, style=style)

    def value(self, what: str, metric: Metric) -> str:
        """The figure with the letter of its provenance, `-` with a reason below."""
        if metric.value is None:
            self._reasons[f"{what}: {metric.reason}"] = None
            return "-"
        return f"{quantities.text(what, metric)} {(metric.provenance or '?')[0]}"

    def figures(self, figures: Mapping[str, Metric]) -> None:
        for name, metric in figures.items():
            emit(self.console, Text(f"  {name:<32} {self.value(name, metric)}"))

    def rows(self, titles: Cells, rows: Iterable[Cells]) -> None:
        print_cells(self.console, titles, list(rows), self.width)

    def reasons(self, reasons: Iterable[str]) -> None:
        self._reasons.update(dict.fromkeys(reasons))

    def close(self, analysis: RunAnalysis) -> None:
        if self._reasons:
            self.title("not known (-)")
            for reason in self._reasons:
                self.line(reason)
        unknown = analysis.unknown.get("model_flops", {})
        if unknown:
            self.title("ops whose model FLOPs are not known, executions a step")
            for reason, runs in sorted(unknown.items(), key=lambda item: -item[1]):
                self.line(f"{quantities.digits(runs)}  {reason}")
        self.title("how to read it")
        self.line("m measured, d derived, p predicted, a assumed", "dim")
        for note in analysis.notes:
            self.line(note, "dim")
        sources = ", ".join(
            f"{source} ({quantities.digits(runs)} executions a step)"
            for source, runs in analysis.flops_sources.items()
        )
        if sources:
            self.line(f"hardware FLOPs from: {sources}", "dim")
        machine = analysis.machine
        if machine.flops_per_s is not None:
            rate = quantities.scaled(machine.flops_per_s, "FLOP/s")
            self.line(f"peak {rate}, {machine.flops_source}", "dim")
        bandwidth = machine.bytes_per_s
        rate = "" if bandwidth is None else f"{quantities.scaled(bandwidth, 'B/s')}, "
        self.line(f"memory bandwidth: {rate}{machine.bytes_source}", "dim")
        if analysis.warnings:
            self.title("warnings")
            for warning in analysis.warnings:
                self.line(warning, "yellow")


def _traffic(page: _Page, analysis: RunAnalysis) -> None:
    page.title("device memory traffic per step")
    found = analysis.traffic
    page.figures(
        {
            "across program boundaries": found.boundary,
            "accessed, as XLA counts": found.accessed,
            "each op on its own (Strict)": found.separate,
            "saved by programs of several ops": found.saved,
        }
    )


def _idle(page: _Page, analysis: RunAnalysis, top: int) -> None:
    page.title("device idle per step, by cause")
    found = analysis.idle
    if found is None:
        page.line("- : neither device nor execute events were recorded in these steps")
        return
    page.line(f"from {found.method}", "dim")
    whole = found.step_s.value or 0.0
    for cause, metric in [("busy", found.busy), *found.causes.items()]:
        if metric.value:
            share = quantities.percent(metric.value / whole) if whole else "-"
            meaning = CAUSES.get(cause, "the device worked")
            emit(page.console, Text(f"  {cause:<12} {page.value(cause, metric):>11} "
                                    f"{share:>8}  {meaning}"[: page.width]))  # fmt: skip
    page.rows(
        ("longest gaps", "step", "at", "cause", "then"),
        (
            (
                quantities.seconds(gap.seconds), str(gap.step),
                quantities.seconds(gap.after_step_start_s), gap.cause, gap.line,
            )
            for gap in found.gaps[: min(top, 5)]
        ),
    )  # fmt: skip


def _variation(page: _Page, analysis: RunAnalysis, top: int) -> None:
    found = analysis.variation
    page.title("step-to-step variation")
    page.figures({"standard deviation over mean": found.cv})
    for outlier in found.outliers[:top]:
        page.line(
            f"step {outlier.step}: {quantities.seconds(outlier.seconds)}, "
            f"{outlier.of_median:.2f}x the median; {outlier.beside}"
        )
    if not found.outliers:
        page.line("no step stands out")


def _recompiles(page: _Page, analysis: RunAnalysis, top: int) -> None:
    again = [row for row in analysis.recompiles if row.differed]
    first = [row for row in analysis.recompiles if not row.differed]
    if not analysis.recompiles:
        return
    page.title("programs compiled again, by line (seconds: trace + XLA, measured)")
    page.rows(
        ("seconds", "times", "late", "differed", "line"),
        (
            (
                quantities.seconds(row.seconds), f"{row.count:,}", f"{row.late:,}", row.differed,
                row.line,
            )
            for row in again[:top]
        ),
    )  # fmt: skip
    if not again:
        page.line("none")
    if first:
        seconds = quantities.seconds(sum(row.seconds for row in first))
        count = sum(row.count for row in first)
        page.line(f"besides {quantities.counted(count, 'first compilation')}, {seconds}", "dim")


def _syncs(page: _Page, analysis: RunAnalysis, top: int) -> None:
    page.title("the host waits for the device, per step (measured)")
    if not analysis.syncs:
        page.line("not inside a steady step")
        return
    page.rows(
        ("seconds", "times", "reason", "line"),
        (
            (
                quantities.seconds(row.seconds), quantities.digits(row.per_step), row.reason,
                row.line if row.certain else f"after {row.line}",
            )
            for row in analysis.syncs[:top]
        ),
    )  # fmt: skip


def _memory(page: _Page, analysis: RunAnalysis, top: int) -> None:
    found = analysis.memory
    page.title("device memory at its peak in steady steps")
    page.figures(
        {
            "live tensors": found.tensors,
            "with the programs' temporaries": found.with_temporaries,
            "largest temporaries": found.temporaries,
        }
    )
    if found.tensors.value is None:
        return
    if found.after_step_start_s is not None:
        page.line(
            f"in step {found.step}, {quantities.seconds(found.after_step_start_s)} after its "
            f"start, phase {found.phase}; largest temporaries of program {found.temporaries_of}"
        )
    peak = found.tensors.value
    for held in found.groups:
        size = quantities.byte_count(held.nbytes)
        text = f"  {held.group:<17} {size:>10} d {quantities.percent(held.nbytes / peak):>8}  "
        emit(page.console, Text((text + GROUPS[held.group])[: page.width]))
    if found.unseen_bytes:
        page.line(
            f"{quantities.byte_count(found.unseen_bytes)} of these were released while nothing "
            "was recorded: which ones is not known"
        )
    page.rows(
        ("bytes", "tensors", "group", "allocated at", "names"),
        (
            (
                quantities.byte_count(held.nbytes), f"{held.buffers:,}", held.group, held.where,
                ", ".join(held.names[:2]) + ("..." if len(held.names) > 2 else ""),
            )
            for held in found.lines[:top]
        ),
    )  # fmt: skip
    page.line("live bytes over a step, from its start to its end, 0 to peak:", "dim")
    emit(page.console, Text("  " + _sparkline(found.timeline["t_s"], found.timeline["live_bytes"],
                                              page.width - 4)))  # fmt: skip


def _sparkline(times: Iterable[float], levels: Iterable[float], columns: int) -> str:
    """The highest level within each column's stretch of time, as bars."""
    points = list(zip(times, levels, strict=True))
    if not points or points[-1][0] <= 0:
        return "-"
    whole, highest = points[-1][0], max(level for _, level in points) or 1.0
    bars: list[float] = [0.0] * columns
    level_at: Callable[[float], int] = lambda t: min(columns - 1, int(t / whole * columns))  # noqa: E731
    for (begun, level), (ended, _) in itertools.pairwise(points):
        for column in range(level_at(begun), level_at(ended) + 1):
            bars[column] = max(bars[column], level)
    return "".join(_BARS[round(bar / highest * (len(_BARS) - 1))] for bar in bars)
