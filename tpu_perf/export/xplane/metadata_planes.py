"""The planes without events: optimised HLO of each program, and the capture's environment."""

from __future__ import annotations

from tpu_perf.export.xplane.capture import Capture, Part
from tpu_perf.export.xplane.device_plane import module_name
from tpu_perf.export.xplane.op_types import program_id
from tpu_perf.xplane.plane_writer import PlaneWriter, Unsigned


def metadata_plane(capture: Capture) -> PlaneWriter:
    """`/host:metadata`: the HloProto of every program that has one; the others are noted."""
    plane = PlaneWriter("/host:metadata", 2)
    executed = set(capture.tables.events("execute")["program"].tolist())
    executed |= set(capture.tables.events("device")["program"].tolist())
    wanted = sorted(executed & set(capture.program_names))
    for program in wanted:
        if program in capture.hlo:
            plane.event_type(
                module_name(capture, program),
                type_id=program_id(program),
                stats={
                    "Hlo Proto": capture.hlo[program],
                    "program_id": Unsigned(program_id(program)),
                    "program_name": capture.program_names[program],
                },
            )
    missing = len(wanted) - len(capture.hlo.keys() & set(wanted))
    if missing:
        capture.note(
            f"{missing:,} of {len(wanted):,} executed programs have no stored HLO: graph viewer "
            "and memory viewer do not list them"
        )
    return plane


def environment_plane(capture: Capture, part: Part) -> PlaneWriter:
    """`Task Environment`: the window in ns. The run's clock has no date, so it starts at 0."""
    plane = PlaneWriter("Task Environment", 3)
    length = part.end_ns - part.origin_ns
    plane.add_stats({"profile_start_time": Unsigned(0), "profile_stop_time": Unsigned(length)})
    return plane
