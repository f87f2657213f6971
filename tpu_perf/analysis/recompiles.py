"""Which lines made programs be compiled again, what had changed, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

from tpu_perf.analysis.run_details import UNKNOWN
from tpu_perf.analysis.rung_record import NS, RunTables
from tpu_perf.record.events import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompile:
    """Compile events of one line that differed in the same component of the key.

    `differed` is empty for programs unlike any before. `seconds` are trace_ns + backend_ns; `late`
    counts those in timed steps; `loaded` those that the directory tier had.
    """

    line: str
    differed: str
    count: int
    seconds: float
    late: int
    loaded: int


def recompiles(tables: RunTables) -> tuple[Recompile, ...]:
    """Recompilations, then first compilations; each the costliest first. Source: compile events."""
    events = tables.events("compile")
    timed = set(tables.phase("timed")["step"])
    groups: dict[tuple[str, str], list[tuple[float, bool, bool]]] = {}
    columns = ["source", "differed", "trace_ns", "backend_ns", "step", "tier"]
    for source, differed, trace, backend, step, tier in events[columns].itertuples(index=False):
        key = _text(source) or UNKNOWN, _text(differed)
        groups.setdefault(key, []).append(
            ((int(trace) + int(backend)) * NS, step in timed, int(tier) != Tier.COMPILED)
        )
    out = [
        Recompile(
            line=line,
            differed=differed,
            count=len(found),
            seconds=sum(seconds for seconds, _, _ in found),
            late=sum(late for _, late, _ in found),
            loaded=sum(loaded for _, _, loaded in found),
        )
        for (line, differed), found in groups.items()
    ]
    return tuple(sorted(out, key=lambda row: (not row.differed, -row.seconds)))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
