"""Writes one device core as a plane that XProf takes for a TPU core: steps, programs and ops."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tpu_perf.export.xplane.capture import Capture, Part
from tpu_perf.export.xplane.device_spans import Core
from tpu_perf.export.xplane.figures import DeviceFigures
from tpu_perf.export.xplane.op_types import OpTypes, program_id, type_ops
from tpu_perf.xplane.event_encoding import Integers
from tpu_perf.xplane.plane_writer import EventColumns, PlaneWriter, StatValue
from tpu_perf.xplane.schema import CoreDetails

STEPS, MODULES, OPS, ASYNC = "Steps", "XLA Modules", "XLA Ops", "Async XLA Ops"

#: Below these, plane ids are the host's and the metadata's.
FIRST_DEVICE_PLANE = 100

_GIGA, _TERA = 1e9, 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the ops of a plane cost together, over both op lines; unknown ones count nothing."""

    plane: str
    flops: int
    bytes_accessed: int


def device_plane(
    capture: Capture,
    part: Part,
    core: Core,
    figures: DeviceFigures,
    types: OpTypes,
    cores: int,
) -> tuple[PlaneWriter, Cost]:
    """The plane of one core and what its ops cost."""
    plane = PlaneWriter(f"/device:TPU:{core.ordinal}", FIRST_DEVICE_PLANE + core.ordinal)
    plane.add_stats(_plane_stats(capture, core, figures, cores))
    _add_steps(plane, capture, part)
    _add_modules(plane, capture, part, part.cut(core.modules))
    known: dict[tuple[int, str], int] = {}
    flops = accessed = unknown = 0
    derived = "" if capture.is_measured else f"{OPS} ({core.lane})"
    for number, name, spans in ((3, OPS, core.ops), (4, ASYNC, core.overlapping)):
        spans = part.cut(spans)
        if name == ASYNC and spans.empty:
            continue
        typed = type_ops(plane, types, spans, known)
        plane.add_line(number, name, _columns(part, spans, typed.type_id), display_name=derived)
        flops, accessed = flops + typed.flops, accessed + typed.bytes_accessed
        unknown += typed.without_flops
    if unknown:
        capture.note(
            f"FLOPs of {unknown:,} of {len(core.ops) + len(core.overlapping):,} events of "
            f"{plane.name} are not known: XProf counts 0 for them"
        )
    return plane, Cost(plane=plane.name, flops=flops, bytes_accessed=accessed)


def _plane_stats(
    capture: Capture, core: Core, figures: DeviceFigures, cores: int
) -> dict[str, StatValue]:
    """Peaks as doubles, or XProf reads 0; what is not known is left out. Several lanes share one
    device: each gets an equal share of its peaks, so that they add up to the device's."""
    environment = capture.run.environment
    stats: dict[str, StatValue] = {
        "device_type_string": figures.name,
        # The plane stands for all that the peaks below are of, so nothing is to be doubled.
        "has_megacore": 0,
        "has_merged_vmem": 0,
        "core_details": CoreDetails(
            hostname="" if environment is None else environment.hostname,
            device_ordinal=core.ordinal,
            core_num=core.ordinal,
            global_core_id=core.ordinal,
        ).SerializeToString(),
        "lane": core.lane,
        "device_spans": "XLA's profiler" if capture.is_measured else core.lane,
    }
    if figures.peak_flops_per_s is not None:
        stats["peak_teraflops_per_second"] = figures.peak_flops_per_s / _TERA / cores
    if figures.hbm_bytes_per_s is not None:
        stats["peak_hbm_bw_gigabytes_per_second"] = figures.hbm_bytes_per_s / _GIGA / cores
    if cores > 1 and core.ordinal == 0:
        capture.note(f"the device's peaks are divided by {cores}, one share for each lane")
    return stats


def _add_steps(plane: PlaneWriter, capture: Capture, part: Part) -> None:
    steps = part.cut(capture.device_steps)
    ids = [plane.event_type(str(step)) for step in steps["step"]]
    plane.add_line(1, STEPS, _columns(part, steps, np.array(ids, dtype=np.int64)))


def _add_modules(plane: PlaneWriter, capture: Capture, part: Part, modules: pd.DataFrame) -> None:
    run_ids = modules["run_id"].to_numpy(dtype=np.int64)
    codes, unique = pd.factorize(modules["program"])
    ids = [plane.event_type(module_name(capture, int(program))) for program in unique]
    id_of = np.array(ids, dtype=np.int64)
    linked = run_ids >= 0
    stats = (
        plane.column("run_id", "int64", run_ids, linked),
        plane.column("queue_id", "int64", np.zeros_like(run_ids), linked),
    )
    events = _columns(part, modules, id_of[codes] if len(ids) else id_of)
    plane.add_line(2, MODULES, replace(events, stats=stats))


def module_name(capture: Capture, program: int) -> str:
    """A program as XProf names modules: "name(id)", the same everywhere in the file."""
    name = capture.module_names.get(program, "unknown program")
    return f"{name}({program_id(program)})"


def _columns(part: Part, spans: pd.DataFrame, type_id: Integers) -> EventColumns:
    start = spans["t_start_ns"].to_numpy(dtype=np.int64)
    return EventColumns(
        type_id=type_id,
        start_ns=start - part.origin_ns,
        duration_ns=spans["t_end_ns"].to_numpy(dtype=np.int64) - start,
    )
