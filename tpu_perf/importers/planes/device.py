"""Device planes of a capture: programs and instructions that ran, and the device's step marks."""

from __future__ import annotations

from tpu_perf.importers.planes.capture_file import Event, Plane
from tpu_perf.importers.planes.tables import Collected
from tpu_perf.record.events import MODULE_LANE

DEVICE_PREFIX = "/device:"
_MODULES, _STEPS = "XLA Modules", "Steps"
_OPS = {"XLA Ops": "", "Async XLA Ops": " async"}

#: Plane stat of our own exports; any other value than this says that spans were derived.
SPANS_STAT, MEASURED_SPANS = "device_spans", "XLA's profiler"


def read_device_plane(plane: Plane, into: Collected, first: bool) -> None:
    """Events of one device. Steps are taken from the `first` device only: all mark the same."""
    device = plane.name.removeprefix(DEVICE_PREFIX)
    if plane.stats.get(SPANS_STAT, MEASURED_SPANS) != MEASURED_SPANS:
        into.notes.append(
            f"{plane.name} was derived from the host's calls when it was exported: its spans are "
            "kept as annotations, not as device events"
        )
        _keep_all(plane, into)
        return
    for line, _, events in plane.lines:
        where = f"{plane.name}/{line}"
        for event in events:
            if line == _STEPS:
                if first:
                    into.device_steps.append(_step(event, len(into.device_steps)))
                into.counts["device step marks"] += 1
            elif line == _MODULES:
                program = into.programs.of_module(event.type.name)
                run_id = event.stats.get("run_id")
                if isinstance(run_id, int) and first:
                    into.run_programs[run_id] = program
                into.add("device", event.start_ns, event.end_ns, program, "", MODULE_LANE, None)
            elif line in _OPS or event.stat("hlo_op"):
                lane = device + _OPS[line] if line in _OPS else f"{device}/{line}"
                read_op(event, into, lane)
            else:
                into.keep(event.type.name, event.start_ns, event.end_ns, where, -1)


def read_op(event: Event, into: Collected, lane: str) -> None:
    """One instruction that ran. A TPU says which in the event's type, a CPU or GPU by stats."""
    name = event.stat("hlo_op")
    name = name if isinstance(name, str) and name else event.type.name
    module = event.stat("hlo_module")
    program = into.programs.number(
        event.stat("program_id"), module if isinstance(module, str) else ""
    )
    into.instructions.add(program, name, event.type)
    into.add("device", event.start_ns, event.end_ns, program, name, lane, None)


def _step(event: Event, order: int) -> tuple[int, str, int, int]:
    name = event.type.name
    number = int(name) if name.isdecimal() and len(name) < 9 else order
    return number, "timed", event.start_ns, event.end_ns


def _keep_all(plane: Plane, into: Collected) -> None:
    for line, _, events in plane.lines:
        for event in events:
            where = f"{plane.name}/{line}"
            into.keep(event.type.name, event.start_ns, event.end_ns, where, -1)
