"""Importer `xplane`: captures of XLA's profiler, from JAX or torch_tpu on TPU, GPU or CPU."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import Any

import zstandard

from tpu_perf.errors import ImportProblem
from tpu_perf.importers.interface import IMPORTERS, Imported, Importer
from tpu_perf.importers.planes.capture_file import (
    PROFILE_DIRECTORY,
    SUFFIX,
    Plane,
    find_capture,
    open_planes,
)
from tpu_perf.importers.planes.device import DEVICE_PREFIX, read_device_plane
from tpu_perf.importers.planes.hlo_costs import fill_from_hlo
from tpu_perf.importers.planes.host import read_host_plane
from tpu_perf.importers.planes.tables import Collected
from tpu_perf.record.details import DETAIL_TABLES, HLO_FILE, KEY_DIGITS
from tpu_perf.record.events import EVENT_KINDS, PROGRAM_COLUMNS, STEP_COLUMNS
from tpu_perf.record.store import RunWriter, table_of_rows

METADATA_PLANE = "/host:metadata"
ENVIRONMENT_PLANE = "Task Environment"


def recognises(path: Path) -> bool:
    """Whether `path` is a *.xplane.pb file or a directory that holds one where profilers put it."""
    if path.is_file():
        return path.name.endswith(SUFFIX)
    patterns = (f"*{SUFFIX}", f"{PROFILE_DIRECTORY}/*/*{SUFFIX}")
    return any(next(path.glob(pattern), None) is not None for pattern in patterns)


def read(path: Path, writer: RunWriter) -> Imported:
    """Fill the run directory from a capture. Raises ImportProblem for a damaged one."""
    file, notes = find_capture(path)
    planes, said = open_planes(file)
    into = Collected(notes=[*notes, *said])
    devices = [plane for plane in planes if plane.name.startswith(DEVICE_PREFIX)]
    hosts = [plane for plane in planes if not plane.name.startswith(DEVICE_PREFIX)]
    for plane in planes:
        if plane.name == METADATA_PLANE:
            _read_modules(plane, into)
    for number, plane in enumerate(devices):
        read_device_plane(plane, into, first=number == 0)
    for plane in hosts:
        read_host_plane(plane, into)
    for row, run_id in into.unlinked:
        row[2] = into.run_programs.get(run_id, row[2])
    if not any(into.events.values()) and not into.steps:
        raise ImportProblem(f"{file} holds no events: nothing was captured, or it is truncated")
    fill_from_hlo(into)
    _write(into, writer)
    kind = _device_kind(devices, into)
    return Imported(
        source=f"XPlane of {len(devices)} device planes and {len(hosts)} others, {kind}",
        device_kind=kind,
        device_count=max(1, len(devices)),
        hostname=file.name.removesuffix(SUFFIX),
        versions=_versions(planes),
        counts=dict(into.counts),
        notes=tuple(into.notes),
    )


def _read_modules(plane: Plane, into: Collected) -> None:
    for kind in plane.types.values():
        program = into.programs.of_module(kind.text)
        name = kind.stats.get("program_name")
        if isinstance(name, str) and program >= 0:  # ours may differ from the module's
            into.programs.names[program] = name
        hlo = kind.stats.get("Hlo Proto")
        if isinstance(hlo, bytes) and hlo:
            into.programs.hlo[program] = hlo


def _versions(planes: list[Plane]) -> dict[str, str]:
    found: dict[str, str] = {}
    for plane in planes:
        for name, value in plane.stats.items():
            if name.endswith("_version") and isinstance(value, str) and value:
                found[name.removesuffix("_version")] = value
    return found


def _device_kind(devices: list[Plane], into: Collected) -> str:
    for plane in devices:
        kind = plane.stats.get("device_type_string") or plane.stats.get("device_type")
        if isinstance(kind, str) and kind:
            return kind
    if devices:
        return devices[0].name.removeprefix(DEVICE_PREFIX).split(":")[0]
    return "cpu" if into.events["device"] else "unknown"


def _write(into: Collected, writer: RunWriter) -> None:
    steps = _steps(into)
    starts = [step[2] for step in steps]
    compiles: Counter[int] = Counter()
    tables: dict[str, list[list[Any]]] = {}
    for kind, rows in into.events.items():
        at = EVENT_KINDS[kind].column_names.index("step")
        for row in rows:
            row[at] = _step_of(row[0], starts, steps)
        if kind == "compile":
            compiles.update(row[at] for row in rows)
        tables[kind] = sorted(rows, key=lambda row: row[0])
    writer.write_events(
        {
            kind: table_of_rows(EVENT_KINDS[kind].columns, [tuple(row) for row in rows])
            for kind, rows in tables.items()
        }
    )
    writer.write_steps(
        table_of_rows(
            STEP_COLUMNS,
            [
                (number, phase, 0, start, into.fences.get(end, end), end, compiles[number],
                 math.nan, math.nan)
                for number, phase, start, end in steps
            ],
        )
    )  # fmt: skip
    writer.write_programs(table_of_rows(PROGRAM_COLUMNS, into.programs.rows()))
    _write_details(into, writer)


def _write_details(into: Collected, writer: RunWriter) -> None:
    found = into.instructions
    details = {
        "instructions": found.rows,
        "program_ops": found.program_ops,
        "sites": found.site_rows(),
    }
    for name, rows in details.items():
        if rows:
            writer.write_detail(name, table_of_rows(DETAIL_TABLES[name], rows))
    if found.undirected:
        into.notes.append(
            f"of {found.undirected:,} instructions the bytes are known, not their direction: all "
            "are counted as read"
        )
    for number, hlo in into.programs.hlo.items():
        directory = writer.partial / "programs" / into.programs.key(number)[:KEY_DIGITS]
        directory.mkdir(parents=True, exist_ok=True)
        (directory / HLO_FILE).write_bytes(zstandard.ZstdCompressor().compress(hlo))


def _steps(into: Collected) -> list[tuple[int, str, int, int]]:
    """Steps in order of time: the host's where the file is one of our exports (its fences say so)
    or the device marked none; else the device's, because the host returns before the work is
    done. Numbers that occur twice are replaced by their order."""
    if into.device_steps and not into.fences:
        steps = into.device_steps
        into.notes.append("steps are those that the device marked: start and end of its work")
    else:
        steps = into.steps
        if steps and not into.fences:
            into.notes.append("steps are the host's annotations; work may go on after their end")
    steps = sorted(steps, key=lambda step: step[2])
    if len({step[0] for step in steps}) < len(steps):
        into.notes.append("step numbers repeat in the capture: steps are numbered by time")
        steps = [(number, *step[1:]) for number, step in enumerate(steps)]
    if not steps:
        into.notes.append("the capture has no step marks: step times are not known")
    return steps


def _step_of(time_ns: int, starts: list[int], steps: list[tuple[int, str, int, int]]) -> int:
    """The step in progress at an instant; -1 outside steps."""
    at = bisect_right(starts, time_ns) - 1
    return steps[at][0] if at >= 0 and time_ns < steps[at][3] else -1


IMPORTERS.add(
    "xplane",
    Importer(
        name="xplane",
        summary="captures of XLA's profiler (JAX, torch_tpu): *.xplane.pb or their directory",
        recognises=recognises,
        read=read,
    ),
)
