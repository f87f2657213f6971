"""Charts over steps and over time: loss, memory within a step, and every step's time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tpu_perf.analysis import quantities
from tpu_perf.analysis.device_memory import live_in_step, typical_step
from tpu_perf.analysis.rung_record import RungRecord, durations
from tpu_perf.export.report.figures import (
    TEXT_COLOUR,
    Figure,
    byte_unit,
    dash,
    layout,
    shown,
    thin,
    time_unit,
)

PHASES = {
    "first": "#D55E00",
    "warmup": "#E69F00",
    "timed": "#0072B2",
    "bare": "#009E73",
    "probe": "#CC79A7",
}
PHASE_SYMBOLS = {
    "first": "diamond",
    "warmup": "triangle-up",
    "timed": "circle",
    "bare": "square",
    "probe": "star",
}
COLUMNS = 2
PANEL_HEIGHT = 190


def losses(rungs: list[RungRecord], colours: dict[str, str]) -> Figure | None:
    """Loss of every rung by step, and of torch on the CPU."""
    data = []
    for index, rung in enumerate(rungs):
        if rung.tables is None:
            continue
        steps = rung.tables.steps
        steps = steps[np.isfinite(steps["loss"])]
        if steps.empty:
            continue
        x, y = thin(steps["step"].to_numpy("float64"), steps["loss"].to_numpy("float64"))
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(x) <= 60 else "lines",
                "name": shown(rung.name),
                "x": x,
                "y": y,
                "line": {"color": colours[rung.name], "dash": dash(index), "width": 2},
                "marker": {"size": 5},
                "hovertemplate": "step %{x}: %{y:.6g}<extra>%{fullData.name}</extra>",
            }
        )
    reference = _reference(rungs)
    if reference:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "torch on the CPU (reference)",
                "x": list(range(len(reference))),
                "y": list(reference),
                "marker": {
                    "symbol": "circle-open",
                    "size": 12,
                    "color": TEXT_COLOUR,
                    "line": {"width": 2},
                },
                "hovertemplate": "step %{x}: %{y:.6g}<extra>reference</extra>",
            }
        )
    if not data:
        return None
    return Figure(
        id="losses",
        title="Loss",
        description="Loss by step, all rungs over one another: where they agree, only the last "
        "drawn is visible. Open circles are torch on the CPU, for the steps compared.",
        data=data,
        layout=layout(
            xaxis={"title": {"text": "step"}},
            yaxis={"title": {"text": "loss (nat)"}},
            hovermode="x unified",
            margin={"l": 70, "r": 24, "t": 60, "b": 56},
        ),
        height=420,
    )


def _reference(rungs: list[RungRecord]) -> tuple[float, ...]:
    """The longest reference any rung holds; rungs of one ladder share it."""
    return max((rung.facts.reference_losses for rung in rungs), key=len, default=())


def memory(rungs: list[RungRecord], colours: dict[str, str]) -> Figure | None:
    """Live device memory over one typical timed step of each rung."""
    found = []
    for index, rung in enumerate(rungs):
        step = typical_step(rung.tables) if rung.ok and rung.tables is not None else None
        if step is None or rung.tables is None:
            continue
        live = live_in_step(rung.tables, step)
        if not live.empty:
            found.append((index, rung, step, live))
    if not found:
        return None
    factor, unit = time_unit([float(live["t_s"].max()) for *_, live in found])
    scale, bytes_unit = byte_unit(max(float(live["live_bytes"].max()) for *_, live in found))
    data = []
    for index, rung, step, live in found:
        x, y = thin(factor * live["t_s"].to_numpy(), live["live_bytes"].to_numpy() / scale)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{shown(rung.name)} (step {step})",
                "x": x,
                "y": y,
                "line": {
                    "shape": "hv",
                    "color": colours[rung.name],
                    "dash": dash(index),
                    "width": 2,
                },
                "hovertemplate": f"%{{x:.4g}} {unit}: %{{y:.4g}} {bytes_unit}"
                "<extra>%{fullData.name}</extra>",
            }
        )
    return Figure(
        id="memory",
        title="Device memory within a step",
        description="Live bytes on the device from buffer lifetimes, over the timed step whose "
        "duration is nearest to the median. Time is when the host allocated or released.",
        data=data,
        layout=layout(
            xaxis={"title": {"text": f"time since the step began ({unit})"}},
            yaxis={"title": {"text": f"live memory ({bytes_unit})"}, "rangemode": "tozero"},
            margin={"l": 70, "r": 24, "t": 60, "b": 56},
        ),
        height=420,
    )


def step_series(rungs: list[RungRecord]) -> Figure | None:
    """Every step's time, one panel per rung, coloured by phase, with compiles marked."""
    rungs = [r for r in rungs if r.tables is not None and not r.tables.steps.empty]
    if not rungs:
        return None
    columns = min(COLUMNS, len(rungs))
    rows = -(-len(rungs) // columns)
    data: list[dict[str, Any]] = []
    changes: dict[str, Any] = {"annotations": []}
    legend_has: set[str] = set()
    for index, rung in enumerate(rungs):
        suffix = "" if index == 0 else str(index + 1)
        changes |= _panel_axes(index, rows, columns, suffix, rung)
        changes["annotations"].append(_panel_title(rung.name, suffix))
        for trace in _panel_traces(rung):
            trace |= {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
            trace["showlegend"] = trace["name"] not in legend_has
            legend_has.add(trace["name"])
            data.append(trace)
    return Figure(
        id="step-series",
        title="Step time by step",
        description="Time of each step (logarithmic) by phase. Crosses mark steps in which "
        "a program was compiled or loaded; they never count as step time. Bare steps ran with "
        "the recorder off.",
        data=data,
        layout=layout(**changes, margin={"l": 70, "r": 24, "t": 60, "b": 48}),
        height=100 + PANEL_HEIGHT * rows,
    )


def _panel_axes(
    index: int, rows: int, columns: int, suffix: str, rung: RungRecord
) -> dict[str, Any]:
    column, row = index % columns, index // columns
    width, height = 1 / columns, 1 / rows
    left, top = column * width, 1 - row * height
    gap = 60 / PANEL_HEIGHT * height
    times = durations(rung.measured.steps)
    low, high = float(times.min()), float(times.max())
    ticks = log_ticks(low, high)
    return {
        f"xaxis{suffix}": {
            "domain": [left + (0.06 if column else 0), left + width - 0.01],
            "anchor": f"y{suffix}",
            "range": [-1, len(times)],
        },
        f"yaxis{suffix}": {
            "domain": [top - height + gap / 2, top - gap / 2],
            "anchor": f"x{suffix}",
            "type": "log",
            "range": [math.log10(1e3 * low / 1.3), math.log10(1e3 * high * 1.3)],
            "tickvals": [1e3 * tick for tick in ticks],
            "ticktext": [quantities.seconds(tick, 2) for tick in ticks],
        },
    }


def log_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values (1, 2, 5 times a power of ten) that cover low to high, at most `most`.

    Powers of ten alone where the range is wide; the two ends where it holds no round value.
    """
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        values = [factor * 10.0**e for e in exponents for factor in factors]
        inside = [value for value in values if low / 1.2 <= value <= high * 1.2]
        if len(inside) <= most:
            break
    stride = -(-len(inside) // most)
    return inside[::stride] if len(inside) >= 2 else sorted({low, high})


def _panel_title(name: str, suffix: str) -> dict[str, Any]:
    return {
        "text": f"<b>{shown(name)}</b>",
        "xref": f"x{suffix} domain",
        "yref": f"y{suffix} domain",
        "x": 0,
        "y": 1,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
    }


def _panel_traces(rung: RungRecord) -> list[dict[str, Any]]:
    tables = rung.measured
    traces = []
    for phase, colour in PHASES.items():
        steps = tables.phase(phase)
        if not steps.empty:
            marker = {"color": colour, "symbol": PHASE_SYMBOLS[phase], "size": 7}
            traces.append(_points(phase, phase, steps["step"].to_numpy(), durations(steps), marker))
    compiled = tables.steps[tables.steps["compiles"] > 0]
    if not compiled.empty:
        marker = {
            "color": TEXT_COLOUR,
            "symbol": "x-thin",
            "size": 11,
            "line": {"width": 2, "color": TEXT_COLOUR},
        }
        numbers = compiled["step"].to_numpy()
        traces.append(_points("compiles", "compiles", numbers, durations(compiled), marker))
    return traces


def _points(
    name: str, group: str, steps: Any, seconds: np.ndarray[Any, Any], marker: dict[str, Any]
) -> dict[str, Any]:
    x, y = thin(np.asarray(steps, dtype=np.float64), 1e3 * seconds)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "legendgroup": group,
        "x": x,
        "y": y,
        "marker": marker,
        "hovertemplate": "step %{x}: %{y:.4g} ms<extra>%{fullData.name}</extra>",
    }
