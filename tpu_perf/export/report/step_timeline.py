"""A picture of one step: what host, dispatch and device did when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tpu_perf.analysis.device_memory import typical_step
from tpu_perf.analysis.run_details import RunDetails
from tpu_perf.analysis.rung_record import NS, RunTables, durations
from tpu_perf.export.report.figures import Figure, layout, shown, time_unit

#: Slices of one kind at most: of more, the longest are drawn and the rest counted.
MAX_SLICES = 3_000
ROW_HEIGHT = 46
#: What is drawn from top to bottom: kind of event, the row, its colour.
_KINDS = (
    ("annotation", "annotations", "#8C8C8C"),
    ("dispatch", "ops", "#E69F00"),
    ("flush", "flushes", "#F0E442"),
    ("execute", "programs enqueued", "#0072B2"),
    ("compile", "compiles", "#D55E00"),
    ("transfer", "copies", "#CC79A7"),
    ("sync", "waits", "#56B4E9"),
    ("fallback", "host fallbacks", "#D55E00"),
    ("device", "device", "#009E73"),
)
_PHASE_COLOURS = {
    "forward": "#E69F00",
    "backward": "#0072B2",
    "optimizer": "#CC79A7",
}
_NAMED_BY = {
    "annotation": "name",
    "dispatch": "op",
    "flush": "reason",
    "transfer": "direction",
    "sync": "reason",
    "fallback": "op",
    "device": "instruction",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Slices of one colour in one row; times in ns since the step began."""

    kind: str
    name: str
    row: str
    colour: str
    start_ns: np.ndarray[Any, Any]
    length_ns: np.ndarray[Any, Any]
    texts: list[str]
    left_out: int


def step_to_draw(tables: RunTables) -> int | None:
    """The typical timed step; of runs with device events, the profiled step nearest to the median
    of its like; else the last step that ran."""
    device = tables.events("device")
    profiled = tables.steps[tables.steps["step"].isin(device["step"])]
    if not profiled.empty:
        times = durations(profiled)
        return int(profiled["step"].iloc[int(np.abs(times - np.median(times)).argmin())])
    typical = typical_step(tables)
    if typical is not None:
        return typical
    return None if tables.steps.empty else int(tables.steps["step"].iloc[-1])


def drawn(tables: RunTables, details: RunDetails, step: int) -> list[Drawn]:
    """The slices of a step, those outside its time cut away."""
    row = tables.steps[tables.steps["step"] == step].iloc[0]
    begin, end = int(row["t_start_ns"]), int(row["t_end_ns"])
    out = []
    for kind, title, colour in _KINDS:
        events = tables.events(kind)
        events = events[(events["t_end_ns"] > begin) & (events["t_start_ns"] < end)]
        for name, label, its_colour, chosen in _split(kind, title, colour, events, details):
            start = np.clip(chosen["t_start_ns"].to_numpy(np.int64), begin, end)
            length = np.clip(chosen["t_end_ns"].to_numpy(np.int64), begin, end) - start
            keep = np.sort(np.argsort(-length, kind="stable")[:MAX_SLICES])
            out.append(
                Drawn(
                    kind=kind, name=name, row=label, colour=its_colour,
                    start_ns=start[keep] - begin, length_ns=length[keep],
                    texts=_texts(kind, chosen.iloc[keep], tables, details),
                    left_out=len(chosen) - len(keep),
                )
            )  # fmt: skip
    return out


def _split(
    kind: str, title: str, colour: str, events: pd.DataFrame, details: RunDetails
) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """(name, row, colour, events): ops by phase, annotations by thread, the device by lane."""
    if events.empty:
        return
    if kind == "dispatch" and details.sites:
        phases = events["site"].map({n: site.phase for n, site in details.sites.items()})
        for phase, part in events.groupby(phases.astype("object").fillna("unknown"), sort=True):
            label = "ops" if str(phase) in ("unknown", "other") else f"ops, {phase}"
            yield label, title, _PHASE_COLOURS.get(str(phase), "#8C8C8C"), part
    elif kind == "device":
        for lane, part in events.groupby(events["lane"].astype(str), sort=True):
            yield title, f"device: {lane}", colour, part
    else:
        yield title, title, colour, events


def _texts(kind: str, events: pd.DataFrame, tables: RunTables, details: RunDetails) -> list[str]:
    if kind in _NAMED_BY:
        names = [str(name) for name in events[_NAMED_BY[kind]].astype(object)]
    else:
        of_program = tables.programs["name"].astype(str).to_dict()
        names = [of_program.get(int(n), f"program {n}") for n in events["program"]]
    if kind != "dispatch":
        return names
    places = {number: site.line_label for number, site in details.sites.items()}
    return [
        f"{name} at {places[site]}" if site in places else name
        for name, site in zip(names, events["site"].tolist(), strict=True)
    ]


def step_timeline(tables: RunTables, details: RunDetails) -> Figure | None:
    """The picture, None for a run in which nothing can be drawn."""
    step = step_to_draw(tables)
    parts = [] if step is None else drawn(tables, details, step)
    if step is None or not parts:
        return None
    row = tables.steps[tables.steps["step"] == step].iloc[0]
    length_s = (int(row["t_end_ns"]) - int(row["t_start_ns"])) * NS
    factor, unit = time_unit([length_s])
    rows = list(dict.fromkeys(part.row for part in parts))
    legend: set[str] = set()
    data = []
    for part in parts:
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": part.name,
                "legendgroup": part.name,
                "showlegend": part.name not in legend,
                "y": [shown(part.row)] * len(part.texts),
                "base": (part.start_ns * NS * factor).tolist(),
                "x": (part.length_ns * NS * factor).tolist(),
                "customdata": [shown(text) for text in part.texts],
                "marker": {"color": part.colour, "line": {"width": 0}},
                "opacity": 0.85,
                "hovertemplate": "%{customdata}<br>%{x:.4g} " + unit + " from %{base:.4g} " + unit
                + "<extra>" + shown(part.name) + "</extra>",
            }
        )  # fmt: skip
        legend.add(part.name)
    left_out = sum(part.left_out for part in parts)
    more = f" {left_out:,} shorter slices are not drawn." if left_out else ""
    return Figure(
        id="timeline",
        title=f"Step {step} ({row['phase']})",
        description="What the host, the dispatcher and the device did when; ops that ran inside "
        "others lie over them. Drag to zoom, hover for names." + more,
        data=data,
        layout=layout(
            barmode="overlay",
            bargap=0.25,
            xaxis={
                "title": {"text": f"time since the step began ({unit})"},
                "range": [0, length_s * factor],
            },
            yaxis={
                "type": "category",
                "categoryorder": "array",
                "categoryarray": [shown(name) for name in rows],
                "autorange": "reversed",
                "automargin": True,
                "fixedrange": True,
            },
            margin={"l": 70, "r": 24, "t": 60, "b": 56},
        ),
        height=170 + ROW_HEIGHT * len(rows),
    )
