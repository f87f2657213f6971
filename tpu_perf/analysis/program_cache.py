"""Programs: what was compiled, what the cache answered, what ran how often."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from tpu_perf.analysis.device_memory import NO_PROGRAMS
from tpu_perf.analysis.rung_record import NS, RunTables
from tpu_perf.analysis.step_time import NO_TIMED_STEPS
from tpu_perf.record.events import Tier
from tpu_perf.record.metric import Metric


def _known(value: float, unit: str, tables: RunTables) -> Metric:
    if not tables.has_programs and tables.events("compile").empty:
        return Metric.missing(unit, NO_PROGRAMS)
    return Metric(value=value, unit=unit, provenance="measured")


def compile_time(tables: RunTables) -> Metric:
    """Seconds spent getting programs that memory did not have: tracing, lowering, XLA, loading.

    Sum of trace_ns + backend_ns over all compile events, set-up and warm-up included; so a
    second process with a warm directory cache shows its loading time. Source: compile events.
    """
    events = tables.events("compile")
    nanoseconds = float(events["trace_ns"].sum() + events["backend_ns"].sum())
    return _known(nanoseconds * NS, "s", tables)


def compile_count(tables: RunTables) -> Metric:
    """Programs built by XLA: compile events with tier COMPILED. Loads from the directory tier
    are not among them. Source: compile events."""
    built = tables.events("compile")["tier"] == Tier.COMPILED
    return _known(float(built.sum()), "count", tables)


def programs(tables: RunTables) -> Metric:
    """Distinct programs executed in the whole run; executions whose program is not known (-1) are
    of one of them. Source: execute events."""
    programs = tables.events("execute")["program"]
    return _known(float(programs[programs >= 0].nunique()), "count", tables)


def cache_requests_per_step(tables: RunTables) -> Metric:
    """Program executions in a step: each is exactly one look-up in the program cache.

    Median over timed steps of the number of execute events. Source: execute events.
    """
    if tables.timed.empty:
        return Metric.missing("count", NO_TIMED_STEPS)
    return _known(events_per_step(tables, "execute"), "count", tables)


def cache_hit_rate(tables: RunTables) -> Metric:
    """Fraction of look-ups, over all steps, that did not have to be compiled.

    1 - (execute events with tier COMPILED) / (execute events). Source: execute events.
    """
    events = tables.events("execute")
    events = events[events["step"] >= 0]
    if events.empty:
        return Metric.missing("fraction", NO_PROGRAMS)
    missed = float((events["tier"] == Tier.COMPILED).mean())
    return Metric(value=1 - missed, unit="fraction", provenance="measured")


def events_per_step(tables: RunTables, kind: str) -> float:
    """Median number of events of a kind in a timed step; 0 without timed steps."""
    if tables.timed.empty:
        return 0.0
    counts = tables.timed_events(kind)["step"].value_counts()
    return float(counts.reindex(tables.timed["step"].to_numpy(), fill_value=0).median())


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTotals:
    """What one tier of the cache gave when memory had nothing."""

    programs: int
    seconds: float


def tier_totals(tables: RunTables, tier: Tier) -> TierTotals:
    """Programs this tier gave and the seconds that took (trace_ns + backend_ns)."""
    events = tables.events("compile")
    events = events[events["tier"] == tier]
    nanoseconds = float(events["trace_ns"].sum() + events["backend_ns"].sum())
    return TierTotals(programs=len(events), seconds=nanoseconds * NS)


def loaded_share(tables: RunTables) -> float:
    """How much of what a rung runs came from the directory tier rather than from XLA.

    A fraction of the ops in all programs compiled or loaded, because one program of a thousand
    ops costs more to compile than thirty programs of one op. 0 where nothing was either.
    """
    events = tables.events("compile").drop_duplicates("program")
    ops = events["program"].map(tables.programs["ops"]).fillna(1).clip(lower=1)
    loaded = ops[events["tier"] != Tier.COMPILED]
    return float(loaded.sum() / ops.sum()) if len(ops) else 0.0


def program_table(tables: RunTables) -> pd.DataFrame:
    """One row per program: name, kind, ops, tier that first gave it, compile_s, executions,
    bytes_in, bytes_out, differed, source; those that cost most first."""
    table = tables.programs[["name", "kind", "ops", "bytes_in", "bytes_out"]].copy()
    compiles = tables.events("compile").copy()
    compiles["compile_s"] = (compiles["trace_ns"] + compiles["backend_ns"]) * NS
    for column in ("differed", "source"):
        compiles[column] = compiles[column].astype("object")
    by_program = compiles.groupby("program").agg(
        tier=("tier", "first"),
        compile_s=("compile_s", "sum"),
        differed=("differed", "first"),
        source=("source", "first"),
    )
    table = table.join(by_program)
    runs = tables.events("execute")["program"].value_counts()
    table["executions"] = runs.reindex(table.index, fill_value=0)
    order = ["compile_s", "executions"]
    return table.sort_values(order, ascending=False, na_position="last", kind="stable")


def flush_table(tables: RunTables) -> pd.DataFrame:
    """One row per flush reason over timed steps: flushes_per_step (mean), ops_per_flush (mean of
    those whose ops are known)."""
    tables = tables.recorded
    events = tables.timed_events("flush").copy()
    events["reason"] = events["reason"].astype("object")
    events["ops"] = events["ops"].where(events["ops"] >= 0)
    grouped = events.groupby("reason").agg(flushes=("ops", "size"), ops_per_flush=("ops", "mean"))
    grouped["flushes_per_step"] = grouped["flushes"] / max(1, len(tables.timed))
    return grouped.sort_values("flushes", ascending=False)


def fallback_counts(tables: RunTables) -> dict[str, int]:
    """How often each op was computed by torch on the host, over the whole run."""
    counts = tables.events("fallback")["op"].astype("object").value_counts()
    return {str(op): int(number) for op, number in counts.items()}
