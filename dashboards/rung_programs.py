"""Section Programs and cache of a rung: look-ups by tier, what was compiled again, and where."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from tpu_perf.analysis import quantities
from tpu_perf.analysis.recompiles import recompiles
from tpu_perf.analysis.rung_record import RunTables
from tpu_perf.export.report import rung_tables
from tpu_perf.record.events import Tier

from . import text
from .ladder import plain_table
from .loading import OpenRun

TOP_LINES = 30


def show(opened: OpenRun) -> None:
    tables = opened.tables
    if not tables.has_programs and tables.events("compile").empty:
        text.message("info", "This engine executes no programs: torch on the CPU.")
        return
    text.table(
        "The program cache, whole run (measured)",
        ("tier", "asked", "answered", "programs compiled or loaded", "seconds"),
        tier_rows(tables),
    )
    _recompiles(tables)
    rung = opened.rung
    for table in filter(None, (rung_tables.flushes([rung]), rung_tables.fallbacks([rung]))):
        plain_table(table)
    _programs(opened)


def tier_rows(tables: RunTables) -> list[tuple[object, ...]]:
    """One row a tier: look-ups that reached it, how many it answered, and what it gave.

    Every execution asks the memory tier; the others' look-ups are events of their own, and
    unknown ("–") in runs that recorded none.
    """
    executes = tables.events("execute")
    lookups, compiles = tables.events("lookup"), tables.events("compile")
    out: list[tuple[object, ...]] = []
    for tier in Tier:
        given = compiles[compiles["tier"] == tier]
        seconds = float(given["trace_ns"].sum() + given["backend_ns"].sum()) * 1e-9
        if tier is Tier.MEMORY:
            asked: object = f"{len(executes):,}"
            answered: object = f"{int((executes['tier'] == tier).sum()):,}"
        elif lookups.empty:
            asked = answered = "–"
        else:
            of_tier = lookups[lookups["tier"] == tier]
            asked, answered = f"{len(of_tier):,}", f"{int((of_tier['hit'] == 1).sum()):,}"
        took = quantities.seconds(seconds) if len(given) else "0"
        out.append((tier.name.lower(), asked, answered, f"{len(given):,}", took))
    return out


def _recompiles(tables: RunTables) -> None:
    rows = recompiles(tables)
    if not rows:
        st.write("No program was compiled or loaded.")
        return
    text.table(
        "Compiled, by source line: programs that differ from an earlier one first",
        ("source line", "what differed", "times", "seconds", "in timed steps", "loaded"),
        [
            (row.line, row.differed or "first use", f"{row.count:,}",
             quantities.seconds(row.seconds), f"{row.late:,}", f"{row.loaded:,}")
            for row in rows[:TOP_LINES]
        ],
        left=2,
    )  # fmt: skip
    if len(rows) > TOP_LINES:
        st.caption(f"{len(rows) - TOP_LINES:,} more, which took less time, are not shown.")


def _programs(opened: OpenRun) -> None:
    frame = program_frame(opened)
    st.subheader(f"Programs ({len(frame):,})")
    if frame.empty:
        st.write("The run lists no programs.")
        return
    number = st.column_config.NumberColumn
    st.dataframe(
        frame,
        hide_index=True,
        key="programs",
        height=420,
        alt="Programs, those that took longest to compile first",
        column_config={
            "compile_ms": number("compile or load (ms)", format="%.4g"),
            "bytes_in": number("bytes in", format="compact"),
            "bytes_out": number("bytes out", format="compact"),
            "bytes_accessed": number("bytes accessed (XLA)", format="compact"),
            "flops": number("FLOPs (XLA)", format="compact"),
            "temp_bytes": number("temporaries", format="compact"),
        },
    )


def program_frame(opened: OpenRun) -> pd.DataFrame:
    """Programs with their cost and where they were compiled; unknown is null."""
    table = opened.summary.programs
    frame = table.assign(compile_ms=table["compile_s"] * 1e3)
    columns = [
        "program",
        "name",
        "kind",
        "tier",
        "ops",
        "compile_ms",
        "executions",
        "bytes_in",
        "bytes_out",
        "bytes_accessed",
        "flops",
        "temp_bytes",
        "differed",
        "source",
    ]
    return frame[columns]  # fmt: skip
