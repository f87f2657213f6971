"""Allocations and releases of device memory as the events that XProf's memory profile reads."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tpu_perf.export.xplane.capture import Capture, Part
from tpu_perf.export.xplane.figures import DeviceFigures
from tpu_perf.export.xplane.op_names import OpNames
from tpu_perf.xplane.event_encoding import Integers
from tpu_perf.xplane.plane_writer import EventColumns, PlaneWriter

MEMORY_LINE = "device memory"
ALLOCATION, DEALLOCATION = "MemoryAllocation", "MemoryDeallocation"
ALLOCATOR = "device 0"


def memory_columns(
    plane: PlaneWriter, capture: Capture, part: Part, figures: DeviceFigures, names: OpNames
) -> EventColumns | None:
    """The part's memory events; None without any. `peak_bytes_in_use` is that of the run so far.

    They go on a line of their own: within the steps XProf would list at the peak only what that
    step allocated, and the parameters, which come from before it, as "unknown". (So it warns that
    steps may be incomplete.) Where the capacity is not known, XProf takes the peak for it and
    shows 0 bytes free.
    """
    events = capture.tables.events("memory").sort_values("t_ns", kind="stable")
    events = events.assign(peak=events["live_bytes"].cummax())
    events = part.cut(events, "t_ns")
    if events.empty:
        return None
    live = events["live_bytes"].to_numpy(dtype=np.int64)
    delta = events["delta_bytes"].to_numpy(dtype=np.int64)
    numbers: dict[str, Integers] = {
        "bytes_allocated": live,
        "peak_bytes_in_use": events["peak"].to_numpy(dtype=np.int64),
        "requested_bytes": np.abs(delta),
        "allocation_bytes": np.abs(delta),
        "addr": events["buffer"].to_numpy(dtype=np.int64),
    }
    if figures.hbm_bytes is None:
        capture.note("the device's memory capacity is not known: XProf shows the peak instead")
    else:
        numbers["bytes_available"] = np.maximum(figures.hbm_bytes - live, 0)
    stats = [plane.column(name, "int64", values, values >= 0) for name, values in numbers.items()]
    stats.append(
        plane.column("allocator_name", "ref", np.full(len(live), plane.stat_id(ALLOCATOR)))
    )
    for name, strings in (
        ("tf_op", _site_names(events, names)),
        ("region_type", _categories(capture, events)),
    ):
        codes, unique = pd.factorize(pd.Series(strings, dtype=object))
        ids = plane.ref_ids(str(text) for text in unique)
        stats.append(plane.column(name, "ref", ids[codes], np.array(strings, object) != ""))
    kinds = np.array([plane.event_type(ALLOCATION), plane.event_type(DEALLOCATION)])
    return EventColumns(
        type_id=kinds[(delta < 0).astype(np.int64)],
        start_ns=events["t_ns"].to_numpy(dtype=np.int64) - part.origin_ns,
        duration_ns=np.zeros(len(live), dtype=np.int64),
        stats=stats,
    )


def _site_names(events: pd.DataFrame, names: OpNames) -> list[str]:
    """Module path and source line of who allocated: memory events do not name an op."""
    labels = {}
    for site in events["site"].unique().tolist():
        origin = names.of_site(int(site))
        labels[site] = " ".join(part for part in (origin.module, origin.source) if part)
    return events["site"].map(labels).tolist()


def _categories(capture: Capture, events: pd.DataFrame) -> list[str]:
    """What a buffer was found to be (parameter, gradient, ...): the first label given to it
    between its allocation and its release."""
    labels = capture.detail("buffer_labels")
    found = [""] * len(events)
    if labels.empty:
        return found
    by_buffer: dict[int, tuple[list[int], list[str]]] = {}
    ordered = labels.sort_values("t_ns")
    for buffer, when, category in zip(
        ordered["buffer"], ordered["t_ns"], ordered["category"].astype(object), strict=True
    ):
        times, categories = by_buffer.setdefault(int(buffer), ([], []))
        times.append(int(when))
        categories.append(str(category))
    open_at: dict[int, str] = {}
    rows = zip(events["buffer"], events["t_ns"], events["delta_bytes"], strict=True)
    for number, (buffer, when, delta) in enumerate(rows):
        if int(buffer) not in by_buffer:
            continue
        times, categories = by_buffer[int(buffer)]
        if delta > 0:
            at = int(np.searchsorted(times, when))
            open_at[int(buffer)] = categories[at] if at < len(times) else ""
        found[number] = open_at.get(int(buffer), "")
    return found
