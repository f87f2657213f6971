"""Tables of a run's page: its steps, where they spend time, memory, cache, waits; rows of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from tpu_perf.analysis import quantities
from tpu_perf.analysis.buffer_lifetimes import GROUPS
from tpu_perf.analysis.device_idle import CAUSES
from tpu_perf.analysis.op_table import OpTable, TableRow
from tpu_perf.analysis.program_cache import tier_totals
from tpu_perf.analysis.run_analysis import RunAnalysis
from tpu_perf.analysis.run_summary import RunSummary, tier_name
from tpu_perf.analysis.rung_record import NS, RunTables
from tpu_perf.export.report.rung_tables import Table
from tpu_perf.record.events import Tier
from tpu_perf.record.metric import Metric

#: Rows of a table at most; the rest is counted below it.
MAX_ROWS = 60
MAX_STEPS = 300
_COLUMNS = {
    "calls": "calls",
    "runs": "runs in programs",
    "host_time": "host time",
    "device_time": "device time",
    "share": "share of step",
    "model_flops": "model FLOP",
    "hardware_flops": "hardware FLOP",
    "accessed_bytes": "bytes (XLA)",
    "boundary_bytes": "bytes in and out",
    "intensity": "FLOP/byte",
    "roofline": "of the roof",
}
NONE = "–"


def steps(summary: RunSummary) -> Table:
    frame = summary.steps
    rows = [
        (
            str(row["step"]), str(row["phase"]), quantities.seconds(row["duration_ns"] * NS),
            quantities.seconds((row["t_dispatched_ns"] - row["t_start_ns"]) * NS),
            f"{row['compiles']:,}", _number(row["loss"]), _number(row["grad_norm"]),
        )
        for row in frame.head(MAX_STEPS).to_dict("records")
    ]  # fmt: skip
    head = ("step", "phase", "time", "until dispatched", "compiles", "loss", "gradient norm")
    return Table(
        caption=f"{quantities.counted(len(frame), 'step')}, each measured until its fence",
        head=head, rows=rows, left=2, note=_left_out(len(frame), len(rows), "steps"),
    )  # fmt: skip


def _number(value: float) -> str:
    return NONE if pd.isna(value) else f"{value:.6g}"


def _left_out(count: int, shown: int, what: str) -> str:
    return f"{count - shown:,} more {what} are in the run's tables." if count > shown else ""


def of_ops(table: OpTable) -> Table:
    """A steady step in one grouping, its total last. Letters in the head: provenance."""
    shown = [*table.rows[:MAX_ROWS], table.total]
    head: list[str] = [table.by]
    for name, title in _COLUMNS.items():
        letters = {(row.measures[name].provenance or "")[:1] for row in shown} - {""}
        head.append(f"{title} ({', '.join(sorted(letters))})" if letters else title)
    rows = [(_label(row, table), *(_text(name, row) for name in _COLUMNS)) for row in shown]
    notes = [f"share is that of {table.share_of}"]
    if len(table.rows) > MAX_ROWS:
        notes.append(f"{len(table.rows) - MAX_ROWS:,} rows more are in the total only")
    notes += dict.fromkeys(
        f"{title} {NONE}: {row.measures[name].reason}"
        for name, title in _COLUMNS.items()
        for row in shown
        if row.measures[name].value is None and name not in ("intensity", "roofline")
    )
    return Table(
        caption=f"A step by {table.by}: means over the steps that count",
        head=tuple(head), rows=rows, note="; ".join(notes) + ".",
    )  # fmt: skip


def _label(row: TableRow, table: OpTable) -> str:
    return "whole step" if row is table.total else row.label


def _text(name: str, row: TableRow) -> str:
    metric = row.measures[name]
    if metric.value is None:
        return NONE
    if name == "intensity":
        return quantities.digits(metric.value)  # its unit stands in the head
    bound = f" {row.bound}" if name == "roofline" and row.bound != "unknown" else ""
    return quantities.text("", metric) + bound


def figures(caption: str, named: Mapping[str, Metric]) -> Table:
    """Figures with their provenance, or why they are missing."""
    rows = [
        (
            title,
            quantities.text("", metric) if metric.value is not None else NONE,
            metric.provenance or "unknown",
            quantities.interval("", metric) or metric.reason or "",
        )
        for title, metric in named.items()
    ]
    head = ("figure", "value", "provenance", "95 % interval, or why it is missing")
    return Table(caption=caption, head=head, rows=rows, texts=(2, 3))


def traffic(analysis: RunAnalysis) -> Table:
    found = analysis.traffic
    return figures(
        "Device memory traffic of a step",
        {
            "across program boundaries": found.boundary,
            "accessed, as XLA counts": found.accessed,
            "each op on its own (Strict)": found.separate,
            "saved by programs of several ops": found.saved,
        },
    )


def idle(analysis: RunAnalysis) -> Table | None:
    found = analysis.idle
    if found is None:
        return None
    whole = found.step_s.value or 0.0
    rows = [
        (
            cause, quantities.seconds(metric.value or 0.0),
            quantities.percent((metric.value or 0.0) / whole) if whole else NONE,
            CAUSES.get(cause, "the device worked"),
        )
        for cause, metric in (("busy", found.busy), *found.causes.items())
    ]  # fmt: skip
    return Table(
        caption="What the device does in a step, and why it is idle (derived)",
        head=("cause", "time", "share", "meaning"), rows=rows, texts=(3,),
        note=f"From {found.method}.",
    )  # fmt: skip


def gaps(analysis: RunAnalysis) -> Table | None:
    if analysis.idle is None or not analysis.idle.gaps:
        return None
    rows = [
        (gap.line, quantities.seconds(gap.seconds), str(gap.step),
         quantities.seconds(gap.after_step_start_s), gap.cause)
        for gap in analysis.idle.gaps
    ]  # fmt: skip
    head = ("then", "idle for", "step", "after its start", "cause")
    return Table(caption="The longest gaps on the device", head=head, rows=rows, texts=(4,))


def syncs(analysis: RunAnalysis) -> Table | None:
    rows = [
        (row.reason, row.line if row.certain else f"after {row.line}",
         quantities.digits(row.per_step), quantities.seconds(row.seconds))
        for row in analysis.syncs[:MAX_ROWS]
    ]  # fmt: skip
    return _unless_empty(
        Table(
            caption="The host waits for the device inside a steady step (measured)",
            head=("reason", "line", "times a step", "time a step"), rows=rows, left=2,
            note=_left_out(len(analysis.syncs), len(rows), "places"),
        )
    )  # fmt: skip


def recompiles(analysis: RunAnalysis) -> Table | None:
    rows = [
        (row.line, row.differed or "(first of its kind)", f"{row.count:,}", f"{row.late:,}",
         f"{row.loaded:,}", quantities.seconds(row.seconds))
        for row in analysis.recompiles[:MAX_ROWS]
    ]  # fmt: skip
    head = ("line", "differed in", "programs", "in timed steps", "loaded", "tracing and XLA")
    return _unless_empty(
        Table(
            caption="Programs compiled or loaded, by line: again first, the costliest first",
            head=head, rows=rows, left=2,
            note=_left_out(len(analysis.recompiles), len(rows), "lines"),
        )
    )  # fmt: skip


def memory_groups(analysis: RunAnalysis) -> Table | None:
    found = analysis.memory
    peak = found.tensors.value or 0.0
    rows = [
        (held.group, quantities.byte_count(held.nbytes),
         quantities.percent(held.nbytes / peak) if peak else NONE, f"{held.buffers:,}",
         GROUPS[held.group])
        for held in found.groups
    ]  # fmt: skip
    unseen = quantities.byte_count(found.unseen_bytes)
    return _unless_empty(
        Table(
            caption="Alive at the peak of device memory in steady steps",
            head=("group", "bytes", "share", "tensors", "meaning"), rows=rows, texts=(4,),
            note=f"{unseen} of these were released while nothing was recorded: which is not known."
            if found.unseen_bytes
            else "",
        )
    )  # fmt: skip


def memory_lines(analysis: RunAnalysis) -> Table | None:
    lines = analysis.memory.lines
    rows = [
        (held.where, held.group, quantities.byte_count(held.nbytes), f"{held.buffers:,}",
         ", ".join(held.names[:3]) + ("…" if len(held.names) > 3 else ""))
        for held in lines[:MAX_ROWS]
    ]  # fmt: skip
    return _unless_empty(
        Table(
            caption="The same by the line that allocated",
            head=("allocated at", "group", "bytes", "tensors", "names"), rows=rows, left=2,
            texts=(4,),
            note=_left_out(len(lines), len(rows), "lines"),
        )
    )  # fmt: skip


def memory_figures(analysis: RunAnalysis) -> Table:
    found = analysis.memory
    return figures(
        "Peak of device memory in steady steps",
        {
            "live tensors": found.tensors,
            "with the programs' temporaries": found.with_temporaries,
            "largest temporaries of a program": found.temporaries,
        },
    )


def cache(tables: RunTables) -> Table | None:
    """Look-ups by tier: every execution asks memory; what it lacks goes down the tiers."""
    executes, lookups = tables.events("execute"), tables.events("lookup")
    if executes.empty:
        return None
    memory = int((executes["tier"] == Tier.MEMORY).sum())
    rows = [("memory", f"{len(executes):,}", f"{memory:,}", NONE, NONE)]
    for tier in (Tier.HOST, Tier.DIRECTORY, Tier.COMPILED):
        asked = lookups[lookups["tier"] == tier]
        gave = tier_totals(tables, tier)
        if len(asked) or gave.programs:
            hits = f"{int((asked['hit'] > 0).sum()):,}" if len(asked) else NONE
            rows.append(
                ("compiler" if tier is Tier.COMPILED else tier_name(tier),
                 f"{len(asked):,}" if len(asked) else NONE, hits, f"{gave.programs:,}",
                 quantities.seconds(gave.seconds))
            )  # fmt: skip
    head = ("tier", "look-ups", "hits", "programs it gave", "tracing, XLA and loading")
    return Table(caption="The program cache, whole run (measured)", head=head, rows=rows)


def _unless_empty(table: Table) -> Table | None:
    return table if table.rows else None


def present(tables: Iterable[Table | None]) -> list[Table]:
    return [table for table in tables if table is not None]
