"""Writes what the host did as a plane: a line a thread with nested events, and one of memory."""

from __future__ import annotations

import numpy as np

from tpu_perf.export.xplane.capture import Capture, Part
from tpu_perf.export.xplane.figures import DeviceFigures
from tpu_perf.export.xplane.host_events import ABSENT, STAT_TYPES, HostEvents, collect
from tpu_perf.export.xplane.memory_events import MEMORY_LINE, memory_columns
from tpu_perf.export.xplane.op_names import OpNames
from tpu_perf.xplane.nesting import nested_levels
from tpu_perf.xplane.plane_writer import EventColumns, PlaneWriter

HOST_PLANE = "/host:CPU"
MAIN_THREAD = "main thread"


def host_plane(capture: Capture, part: Part, figures: DeviceFigures, names: OpNames) -> PlaneWriter:
    """The host's plane: utilisation figures, threads, and allocations of device memory."""
    plane = PlaneWriter(HOST_PLANE, 1)
    # XProf's overview page takes these two from here and derives neither.
    for stat, fraction in (
        ("matrix_unit_utilization_percent", figures.mxu_fraction),
        ("hbm_utilization_percent", figures.hbm_fraction),
    ):
        if fraction is not None:
            plane.add_stats({stat: fraction * 100.0})
    events = collect(plane, capture, part, names)
    number = 0
    for thread in np.unique(events.thread).tolist():
        own = events.take(np.flatnonzero(events.thread == thread))
        own = own.take(np.lexsort((own.rank, -own.end_ns, own.start_ns)))
        levels = nested_levels(own.start_ns, own.end_ns)
        for level in range(int(levels.max(initial=0)) + 1):
            number += 1
            name = MAIN_THREAD if thread == 0 else f"thread {thread}"
            name = name if level == 0 else f"{name}, overlapping {level}"
            chosen = own.take(np.flatnonzero(levels == level))
            plane.add_line(number, name, _columns(plane, part, chosen))
    memory = memory_columns(plane, capture, part, figures, names)
    if memory is not None:
        plane.add_line(number + 1, MEMORY_LINE, memory)
    return plane


def _columns(plane: PlaneWriter, part: Part, events: HostEvents) -> EventColumns:
    stats = []
    for name, values in events.stats.items():
        present = values != ABSENT
        if present.any():
            stats.append(plane.column(name, STAT_TYPES[name], values, present))
    return EventColumns(
        type_id=events.type_id,
        start_ns=events.start_ns - part.origin_ns,
        duration_ns=events.end_ns - events.start_ns,
        stats=stats,
    )
