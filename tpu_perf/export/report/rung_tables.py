"""Tables of the report: metrics, programs, flushes, numerics, each as plain rows of text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpu_perf.analysis import quantities
from tpu_perf.analysis.comparison import break_even_steps, startup_comparable, startup_cost
from tpu_perf.analysis.numerics import relative
from tpu_perf.analysis.program_cache import (
    fallback_counts,
    flush_table,
    loaded_share,
    program_table,
    tier_totals,
)
from tpu_perf.analysis.rung_record import RungRecord
from tpu_perf.record.events import Tier
from tpu_perf.record.metric import METRIC_UNITS, Metric

SUMMARY = {
    "step_time": "step time",
    "speedup": "speed-up",
    "tokens_per_second": "tokens/s",
    "mfu": "MFU",
    "hbm_peak_bytes": "HBM peak",
    "compile_time": "compile",
    "cache_requests_per_step": "programs / step",
    "cache_hit_rate": "cache hits",
    "loss_max_abs_diff": "loss diff (nat)",
}
TITLES = SUMMARY | {
    "model_flops_per_step": "model FLOPs / step",
    "hbm_boundary_bytes_per_step": "bytes across program boundaries / step",
    "hbm_accessed_bytes_per_step": "bytes accessed / step (XLA's estimate)",
    "first_step_time": "first step",
    "warmup_time": "warm-up beyond warm steps",
    "compile_time": "compile time, whole run",
    "compile_count": "programs compiled",
    "programs": "distinct programs",
    "cache_requests_per_step": "program executions / step",
    "host_time_per_step": "host time / step",
    "device_time_per_step": "device time / step",
    "collectives_per_step": "collectives / step",
    "collective_bytes_per_step": "bytes moved between devices / step",
    "collective_sent_bytes_per_step": "bytes sent by a device / step (ring)",
    "collective_exposed_time": "collectives, exposed / step",
    "collective_hidden_time": "collectives, hidden / step",
    "replicated_bytes": "state that other devices have too",
    "scaling_efficiency": "scaling efficiency against one device",
    "grad_norm_max_rel_diff": "gradient norm, relative diff",
    "recorder_overhead": "recorder overhead",
}
#: Programs listed per rung; the rest is counted.
MAX_PROGRAMS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One number of a table: text, interval, the letter of its provenance, or why it is missing."""

    text: str
    interval: str = ""
    provenance: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table whose first column names the row; `left` counts the columns set flush left, `texts`
    names others that hold words."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: int = 1
    note: str = ""
    texts: tuple[int, ...] = ()


def cell(name: str, metric: Metric) -> Cell:
    return Cell(
        text="–" if metric.value is None else quantities.text(name, metric),
        interval=quantities.interval(name, metric).replace("-", "–"),
        provenance=metric.provenance or "",
        reason=metric.reason or "",
    )


def summary_row(rung: RungRecord) -> list[Cell]:
    return [cell(name, rung.metric(name)) for name in SUMMARY]


def all_metrics(rungs: list[RungRecord]) -> list[tuple[str, str, list[Cell]]]:
    """One row per metric: its title, its name in JSON, and a cell for each rung."""
    return [
        (TITLES[name], name, [cell(name, rung.metric(name)) for rung in rungs])
        for name in METRIC_UNITS
    ]


def cache(rungs: list[RungRecord]) -> Table | None:
    """What each rung compiled, loaded from the directory tier, and found in memory."""
    rows = []
    for rung in rungs:
        if not rung.ok or rung.tables is None or not rung.tables.has_programs:
            continue
        built, loaded = (tier_totals(rung.tables, t) for t in (Tier.COMPILED, Tier.DIRECTORY))
        metrics = ("programs", "cache_requests_per_step", "cache_hit_rate")
        rows.append(
            (
                rung.name,
                *(quantities.text(name, rung.metric(name)) for name in metrics),
                f"{built.programs:,}",
                quantities.seconds(built.seconds),
                f"{loaded.programs:,}",
                quantities.seconds(loaded.seconds),
            )
        )
    head = (
        "rung",
        "distinct programs",
        "executions / step",
        "hits",
        "compiled",
        "compile time",
        "loaded from directory",
        "load time",
    )
    return Table(caption="The program cache, whole run", head=head, rows=rows) if rows else None


def programs_of(rung: RungRecord) -> Table | None:
    """Programs of a rung, those that took longest to compile first."""
    if rung.tables is None or rung.tables.programs.empty:
        return None
    frame = program_table(rung.tables)
    rows = [
        (
            str(row["name"]),
            str(row["kind"]),
            _tier(row["tier"]),
            _known(row["ops"], quantities.count),
            _known(row["compile_s"], quantities.seconds),
            _known(row["executions"], quantities.count),
            _known(row["bytes_in"], quantities.byte_count),
            _known(row["bytes_out"], quantities.byte_count),
            _text(row["differed"]),
            _text(row["source"]),
        )
        for row in frame.head(MAX_PROGRAMS).to_dict("records")
    ]
    hidden = len(frame) - len(rows)
    tiers = frame["tier"].dropna()
    by_tier = ", ".join(
        f"{_tier(float(tier))} {int((tiers == tier).sum()):,}" for tier in sorted(tiers.unique())
    )
    return Table(
        caption=f"{rung.name}: {quantities.counted(len(frame), 'program')}"
        + (f" ({by_tier})" if by_tier else ""),
        head=(
            "program",
            "kind",
            "came from",
            "ops",
            "compile or load",
            "executions",
            "bytes in",
            "bytes out",
            "differed in",
            "source",
        ),
        rows=rows,
        left=3,
        note=f"{hidden:,} more, cheaper to compile, are in programs.parquet." if hidden else "",
    )


def _tier(tier: float) -> str:
    if tier != tier:
        return "–"
    names = {Tier.COMPILED: "compiled", Tier.DIRECTORY: "directory", Tier.HOST: "host"}
    return names.get(Tier(int(tier)), "memory")


def _known(value: float, words: Callable[[float], str]) -> str:
    """A figure in words, a dash for NaN."""
    return "–" if value != value else words(float(value))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def flushes(rungs: list[RungRecord]) -> Table | None:
    """Flush reasons of all rungs that defer."""
    rows = [
        (
            rung.name,
            str(reason),
            quantities.digits(float(row["flushes_per_step"])),
            _known(row["ops_per_flush"], quantities.digits),
        )
        for rung in rungs
        if rung.ok and rung.tables is not None
        for reason, row in flush_table(rung.tables).iterrows()
    ]
    head = ("rung", "reason", "flushes / step", "ops / flush")
    caption = "Why deferred segments were cut, mean over timed steps"
    return Table(caption=caption, head=head, rows=rows, left=2) if rows else None


def fallbacks(rungs: list[RungRecord]) -> Table | None:
    """Ops that torch computed on the host."""
    rows = [
        (rung.name, op, quantities.count(number))
        for rung in rungs
        if rung.tables is not None
        for op, number in fallback_counts(rung.tables).items()
    ]
    caption = "Ops computed by torch on the host, whole run"
    return Table(caption=caption, head=("rung", "op", "times"), rows=rows, left=2) if rows else None


def break_even(rungs: list[RungRecord], baseline: str) -> Table | None:
    """After how many steps each rung's start-up has paid for itself."""
    base = next((rung for rung in rungs if rung.name == baseline), None)
    measured = [r for r in rungs if r.value("step_time") is not None and r.name != baseline]
    if base is None or base.value("step_time") is None or not measured:
        return None
    rows = []
    for rung in measured:
        mine, theirs = startup_cost(rung), startup_cost(base)
        known = mine is not None and theirs is not None
        extra = quantities.seconds((mine or 0.0) - (theirs or 0.0)) if known else "–"
        gain = (base.value("step_time") or 0) - (rung.value("step_time") or 0)
        rows.append((rung.name, extra, quantities.seconds(gain), _verdict(base, rung, gain)))
    return Table(
        caption=f"When compiling and warming up have paid for themselves, against {baseline}",
        head=("rung", "extra start-up", "saved per step", "breaks even after"),
        rows=rows,
    )


def _verdict(base: RungRecord, rung: RungRecord, gain: float) -> str:
    """When the rung has repaid its start-up, in words."""
    if gain <= 0:
        return "never"
    if None in (startup_cost(rung), startup_cost(base)):
        return "unknown"
    if not startup_comparable(base, rung):
        warm = max((base, rung), key=lambda one: loaded_share(one.measured))
        return f"unknown: {warm.name} loaded programs from the cache"
    steps = break_even_steps(base, rung)
    return "at once" if not steps else f"{steps:,.0f} steps"


def numerics(rungs: list[RungRecord]) -> Table | None:
    """Loss and gradient norm of each rung against torch on the CPU."""
    rows = []
    for rung in rungs:
        facts = rung.facts
        pairs = list(zip(facts.losses, facts.reference_losses, strict=False))
        if not pairs:
            continue
        worst = max(relative(value, reference) for value, reference in pairs)
        tolerance = facts.numerics_tolerance
        verdict = "–" if tolerance is None else "yes" if worst <= tolerance else "NO"
        rows.append(
            (
                rung.name,
                str(len(pairs)),
                f"{pairs[-1][0]:.6g}",
                f"{pairs[-1][1]:.6g}",
                quantities.text("loss_max_abs_diff", rung.metric("loss_max_abs_diff")),
                quantities.small(worst),
                quantities.text("grad_norm_max_rel_diff", rung.metric("grad_norm_max_rel_diff")),
                "–" if tolerance is None else quantities.small(tolerance),
                verdict,
            )
        )
    head = (
        "rung",
        "steps compared",
        "last loss",
        "reference",
        "largest loss diff (nat)",
        "relative",
        "gradient norm, relative",
        "tolerance",
        "loss within",
    )
    caption = "Against torch on the CPU, same seed and batches"
    return Table(caption=caption, head=head, rows=rows) if rows else None


def lane_notes(rungs: list[RungRecord]) -> list[tuple[str, str, str]]:
    """(rung, topic, sentence) for everything the worker had to say about its numbers."""
    notes = []
    for rung in rungs:
        facts = rung.facts
        for topic, note in (
            ("lanes", facts.lane_note),
            ("warm", facts.warm_note),
            ("FLOPs", facts.flops_convention),
            ("peak", facts.peak_source),
        ):
            if note:
                notes.append((rung.name, topic, note))
        notes.extend((rung.name, topic, note) for topic, note in facts.source.items())
    return notes


def plan_of(rung: RungRecord) -> str | None:
    return None if rung.run is None else json.dumps(rung.run.plan.to_json(), indent=2)
