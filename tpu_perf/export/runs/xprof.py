"""Run exporter `xprof`: a directory that the XProf server (and TensorBoard) opens."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tpu_perf.errors import StoredRunError
from tpu_perf.export.run_interface import RUN_EXPORTERS, Exported, RunExporter
from tpu_perf.export.xplane.capture import EVENTS_PER_FILE, Capture, Part
from tpu_perf.export.xplane.device_plane import Cost, device_plane
from tpu_perf.export.xplane.device_spans import Core, device_cores
from tpu_perf.export.xplane.figures import DeviceFigures, device_figures
from tpu_perf.export.xplane.host_plane import host_plane
from tpu_perf.export.xplane.metadata_planes import environment_plane, metadata_plane
from tpu_perf.export.xplane.op_types import OpTypes
from tpu_perf.export.xplane.verification import verify
from tpu_perf.record.store import StoredRun
from tpu_perf.xplane.plane_writer import LineTotals, PlaneWriter

#: Where XProf and TensorBoard look below their log directory.
PROFILE_DIRECTORY = Path("plugins") / "profile"
SUFFIX = ".xplane.pb"


def write(stored: StoredRun, out: Path, *, events_per_file: int = EVENTS_PER_FILE) -> Exported:
    """Write `<out>/plugins/profile/<run name>/<host>.xplane.pb`, a run name never used there
    before, and check it with the real reader; files of a failed check are removed.

    A run with more than `events_per_file` events becomes several, one a range of steps. Raises
    StoredRunError for a run without events, ExportMismatch where the check fails.
    """
    capture = Capture(stored)
    parts = capture.parts(events_per_file)
    if not parts:
        raise StoredRunError(f"{stored.directory} holds no events: there is nothing to export")
    pieces = _Pieces(capture)
    base = out / PROFILE_DIRECTORY
    name = _fresh_name(base, stored)
    files = [_write_part(pieces, part, base / _part_name(name, part)) for part in parts]
    if len(parts) > 1:
        capture.note(
            f"more than {events_per_file:,} events: split by steps into {len(parts)} runs of XProf"
        )
    _note_steps(capture)
    if stored.run.facts.dropped_events:
        capture.note(f"{stored.run.facts.dropped_events:,} events were dropped while recording")
    return Exported(
        files=files,
        notes=tuple(capture.notes),
        opens_with=f"python -m xprof.server --logdir {out}",
    )


@dataclass(frozen=True, slots=True, init=False)
class _Pieces:
    """What all parts of a run share."""

    capture: Capture
    cores: list[Core]
    figures: DeviceFigures
    types: OpTypes

    def __init__(self, capture: Capture) -> None:
        object.__setattr__(self, "capture", capture)
        object.__setattr__(self, "cores", device_cores(capture))
        object.__setattr__(self, "figures", device_figures(capture))
        object.__setattr__(self, "types", OpTypes(capture))


def _write_part(pieces: _Pieces, part: Part, directory: Path) -> Path:
    capture = pieces.capture
    planes: list[PlaneWriter] = [host_plane(capture, part, pieces.figures, pieces.types.names)]
    costs: list[Cost] = []
    for core in pieces.cores:
        plane, cost = device_plane(
            capture, part, core, pieces.figures, pieces.types, len(pieces.cores)
        )
        planes.append(plane)
        costs.append(cost)
    planes += [metadata_plane(capture), environment_plane(capture, part)]
    directory.mkdir(parents=True)
    path = directory / f"{_host(capture)}{SUFFIX}"
    temporary = path.with_name(path.name + ".tmp")
    lines: list[LineTotals] = [total for plane in planes for total in plane.totals]
    try:
        with temporary.open("wb") as file:
            for plane in planes:
                file.write(plane.to_bytes())
        verify(temporary, lines, costs)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        directory.rmdir()
        raise
    return path


def _note_steps(capture: Capture) -> None:
    marked, on_device = capture.marked_steps, capture.device_steps
    if marked.empty:
        capture.note("the run has no timed or probe step: XProf finds no step marker")
    elif len(on_device) < len(marked):
        capture.note(
            f"XProf's step figures are of the {len(on_device)} steps that XLA's profiler saw, "
            f"which it may have slowed; the other {len(marked) - len(on_device)} timed steps are "
            "on the host plane only"
        )


def _host(capture: Capture) -> str:
    """One file a rank: a run is one rank's, its directory's name tells ranks of a host apart."""
    environment = capture.run.environment
    host = "unknown-host" if environment is None else environment.hostname
    return _safe(f"{host}-{capture.stored.directory.name}")


def _fresh_name(base: Path, stored: StoredRun) -> str:
    """A name of a run that no directory below `base` begins with: XProf caches by it."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = wanted = _safe(f"{stored.run.plan.rung}-{stamp}")
    number = 1
    while any(base.glob(f"{name}*")):
        number += 1
        name = f"{wanted}-{number}"
    return name


def _part_name(name: str, part: Part) -> str:
    if part.first_step is None:
        return name
    return f"{name}-steps-{part.first_step:06d}-to-{part.last_step:06d}"


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


RUN_EXPORTERS.add(
    "xprof",
    RunExporter(
        name="xprof",
        summary="XPlane files for XProf and TensorBoard's profile page",
        write=write,
    ),
)
