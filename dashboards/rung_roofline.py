"""Section Roofline of a rung: FLOP/s reached against FLOPs per byte, under the machine's roofs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpu_perf.analysis import quantities
from tpu_perf.analysis.roofline import Machine
from tpu_perf.export.report.figures import COLOURS, TEXT_COLOUR, Figure, layout, shown

from . import charts, text
from .loading import OpenRun

MAX_POINTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """FLOP/byte and FLOP/s of an op or of the whole step; `share`: of the device's time."""

    label: str
    intensity: float
    flops_per_s: float
    share: float
    whole: bool = False


def show(opened: OpenRun) -> None:
    if opened.tables.timed.empty:
        text.message("info", "No timed step was free of compiles, so no rate can be given.")
        return
    points, why = points_of(opened)
    machine = opened.machine
    if not points:
        text.message("info", f"No point can be placed: {why}.")
    else:
        charts.show(roofline(points, machine), "")
        if why:
            text.note(f"Ops are not placed one by one: {why}.")
        _table(points, machine)
    _machine(machine)


def points_of(opened: OpenRun) -> tuple[list[Point], str]:
    """Ops whose FLOPs, bytes and device time are known, and the whole step; and why ops lack."""
    found = opened.op_table("op")
    points = []
    total = found.total.measures["device_time"].value
    for row in found.rows[:MAX_POINTS]:
        flops, device = row.measures["hardware_flops"].value, row.measures["device_time"].value
        intensity = row.measures["intensity"].value
        if flops and device and intensity:
            points.append(
                Point(label=row.label, intensity=intensity, flops_per_s=flops / device,
                      share=device / total if total else 0.0)
            )  # fmt: skip
    why = ""
    if not points:
        lacking = [found.total.measures[name] for name in ("device_time", "hardware_flops")]
        why = next((m.reason for m in lacking if m.reason), None) or "their bytes are not known"
    rung = opened.rung
    flops = rung.value("model_flops_per_step")
    device = rung.value("device_time_per_step")
    moved = rung.value("hbm_boundary_bytes_per_step")
    if flops and device and moved:
        points.append(
            Point(label="the whole step (model FLOPs, bytes across program boundaries)",
                  intensity=flops / moved, flops_per_s=flops / device, share=1.0, whole=True)
        )  # fmt: skip
    return points, why


def roofline(points: Sequence[Point], machine: Machine) -> Figure:
    """Both axes logarithmic; a point's size is its share of device time."""
    low = min(point.intensity for point in points) / 4
    high = max([point.intensity for point in points] + [machine.ridge or 0]) * 4
    xs = np.geomspace(low, high, 60)
    data: list[dict[str, object]] = [
        _marks([point for point in points if point.whole is whole], whole)
        for whole in (False, True)
        if any(point.whole is whole for point in points)
    ]
    peak, bandwidth = machine.flops_per_s, machine.bytes_per_s
    if peak is not None:
        roof = np.full_like(xs, peak) if bandwidth is None else np.minimum(peak, xs * bandwidth)
        data.append(
            {"type": "scatter", "mode": "lines", "name": "what the machine allows",
             "x": xs.tolist(), "y": roof.tolist(),
             "line": {"color": TEXT_COLOUR, "width": 2},
             "hovertemplate": "%{y:.3s}FLOP/s at %{x:.3g} FLOP/byte<extra>roof</extra>"}
        )  # fmt: skip
    return Figure(
        id="roofline",
        title="Roofline",
        description="FLOP/s reached (hardware FLOPs over device time) against FLOPs per byte; "
        "larger points take more of the device's time. The line is what peak and memory "
        "bandwidth allow.",
        data=data,
        layout=layout(
            xaxis={"type": "log", "title": {"text": "FLOP per byte"},
                   "range": [float(np.log10(low)), float(np.log10(high))]},
            yaxis={"type": "log", "title": {"text": "FLOP/s"}, "tickformat": ".2s"},
            hovermode="closest",
        ),
        height=460,
    )  # fmt: skip


def _marks(points: Sequence[Point], whole: bool) -> dict[str, object]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "whole step" if whole else "op",
        "x": [point.intensity for point in points],
        "y": [point.flops_per_s for point in points],
        "marker": {
            "color": COLOURS[5] if whole else COLOURS[0],
            "symbol": "diamond" if whole else "circle",
            "size": [14 if whole else 8 + 26 * point.share**0.5 for point in points],
            "opacity": 0.8,
            "line": {"width": 1},
        },
        "customdata": [
            f"{shown(point.label)}<br>{quantities.scaled(point.flops_per_s, 'FLOP/s')} at "
            f"{quantities.digits(point.intensity)} FLOP/byte"
            for point in points
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _table(points: Sequence[Point], machine: Machine) -> None:
    def of_roof(point: Point) -> str:
        if machine.flops_per_s is None:
            return "–"
        bandwidth = machine.bytes_per_s
        roof = machine.flops_per_s
        if bandwidth is not None:
            roof = min(roof, point.intensity * bandwidth)
        return quantities.percent(point.flops_per_s / roof)

    text.table(
        "The same in numbers (derived)",
        ("op", "FLOP/byte", "FLOP/s", "of the roof", "of device time"),
        [
            (point.label, quantities.digits(point.intensity),
             quantities.scaled(point.flops_per_s, "FLOP/s"), of_roof(point),
             "" if point.whole else quantities.percent(point.share))
            for point in sorted(points, key=lambda point: -point.share)
        ],
    )  # fmt: skip


def _machine(machine: Machine) -> None:
    peak = machine.flops_per_s
    text.terms(
        {
            "Peak": ("not known" if peak is None else quantities.scaled(peak, "FLOP/s"))
            + f" ({machine.flops_source})",
            "Memory bandwidth": (
                "not known" if machine.bytes_per_s is None
                else f"{quantities.byte_count(machine.bytes_per_s)}/s"
            ) + f" ({machine.bytes_source})"
            + ("; so the only roof is the peak" if machine.bytes_per_s is None else ""),
        }
    )  # fmt: skip
