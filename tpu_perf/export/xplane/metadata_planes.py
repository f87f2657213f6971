"""The planes without events: optimised HLO of each program, and the capture's environment."""

from __future__ import annotations

from pathlib import Path

import zstandard

from tpu_perf.export.xplane.capture import Capture, Part, texts
from tpu_perf.export.xplane.device_plane import module_name
from tpu_perf.export.xplane.op_types import program_id
from tpu_perf.record.details import HLO_FILE
from tpu_perf.xplane.plane_writer import PlaneWriter, Unsigned

KEY_DIGITS = 32  # of a program's key that name its directory
HLO_LIMIT_BYTES = 2**29  # one module larger than this would leave no room below protobuf's 2 GiB


def metadata_plane(capture: Capture) -> PlaneWriter:
    """`/host:metadata`: the HloProto of every program that has one; the others are noted."""
    plane = PlaneWriter("/host:metadata", 2)
    programs = capture.tables.programs
    executed = set(capture.tables.events("execute")["program"].tolist())
    executed |= set(capture.tables.events("device")["program"].tolist())
    missing = wanted = 0
    for program, key in zip(programs.index.tolist(), texts(programs["key"]), strict=True):
        if program not in executed:
            continue
        wanted += 1
        hlo = _hlo(capture.stored.directory / "programs" / key[:KEY_DIGITS] / HLO_FILE)
        if hlo is None:
            missing += 1
            continue
        plane.event_type(
            module_name(capture, program),
            type_id=program_id(program),
            stats={"Hlo Proto": hlo, "program_id": Unsigned(program_id(program))},
        )
    if missing:
        capture.note(
            f"{missing:,} of {wanted:,} executed programs have no stored HLO: graph viewer and "
            "memory viewer do not list them"
        )
    return plane


def _hlo(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            data = zstandard.ZstdDecompressor().stream_reader(file).read(HLO_LIMIT_BYTES + 1)
    except (OSError, zstandard.ZstdError):
        return None
    return data if 0 < len(data) <= HLO_LIMIT_BYTES else None


def environment_plane(capture: Capture, part: Part) -> PlaneWriter:
    """`Task Environment`: the window in ns. The run's clock has no date, so it starts at 0."""
    plane = PlaneWriter("Task Environment", 3)
    length = part.end_ns - part.origin_ns
    plane.add_stats({"profile_start_time": Unsigned(0), "profile_stop_time": Unsigned(length)})
    return plane
