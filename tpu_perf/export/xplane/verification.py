"""Reopens a written file with JAX's own XPlane reader and compares it with what was meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpu_perf.errors import EnvironmentProblem, ExportMismatch
from tpu_perf.export.xplane.device_plane import ASYNC, OPS, Cost
from tpu_perf.xplane.plane_writer import LineTotals
from tpu_perf.xplane.schema import parse_space


def verify(path: Path, lines: Sequence[LineTotals], costs: Sequence[Cost]) -> None:
    """Compare events and time of every line, and FLOPs and bytes of every device plane.

    Raises ExportMismatch that names the first difference; EnvironmentProblem without a reader.
    """
    found_lines = read_lines(path)
    for number, expected in enumerate(lines):
        found = found_lines[number] if number < len(found_lines) else None
        if found != expected:
            raise _mismatch(path, found, expected)
    if len(found_lines) > len(lines):
        raise _mismatch(path, found_lines[len(lines)], None)
    found_costs = read_costs(path)
    for cost in costs:
        if found_costs.get(cost.plane) != cost:
            raise _mismatch(path, found_costs.get(cost.plane), cost)


def _mismatch(path: Path, found: object, expected: object) -> ExportMismatch:
    return ExportMismatch(
        f"{path} reads back as {found}, not {expected}",
        hint="the file is not to be trusted; please report this with the run",
    )


def read_lines(path: Path) -> list[LineTotals]:
    """Totals of every line as JAX's reader sees them, in the file's order."""
    try:
        from jax.profiler import (
            ProfileData,
        )  # the reader users have; our schema cannot judge itself
    except ImportError as error:
        raise EnvironmentProblem(
            f"the written file cannot be checked: {error}", hint="install jax"
        ) from None
    out = []
    for plane in ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            count = duration = starts = 0
            for event in line.events:
                count += 1
                duration += round(event.duration_ns)
                starts += round(event.start_ns)
            out.append(
                LineTotals(
                    plane=plane.name,
                    line=line.name,
                    events=count,
                    duration_ns=duration,
                    start_sum_ns=starts,
                )
            )
    return out


def read_costs(path: Path) -> dict[str, Cost]:
    """FLOPs and bytes of the op lines of each device plane. They are stats of event metadata,
    which JAX's reader does not show: read with our schema."""
    out = {}
    for plane in parse_space(path.read_bytes()).planes:
        if not plane.name.startswith("/device:"):
            continue
        times: Counter[int] = Counter()
        for line in plane.lines:
            if line.name in (OPS, ASYNC):
                times.update(event.metadata_id for event in line.events)
        names = {identity: stat.name for identity, stat in plane.stat_metadata.items()}
        totals = dict.fromkeys(("flops", "bytes_accessed"), 0)
        for identity, count in times.items():
            for name, value in _integers(plane.event_metadata[identity].stats, names):
                if name in totals:
                    totals[name] += count * value
        out[plane.name] = Cost(plane=plane.name, **totals)
    return out


def _integers(stats: Any, names: dict[int, str]) -> list[tuple[str, int]]:
    return [(names[stat.metadata_id], stat.int64_value) for stat in stats]
