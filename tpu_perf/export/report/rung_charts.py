"""Charts that compare rungs: step time, MFU, the way from rung to rung, where a step goes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tpu_perf.analysis import quantities
from tpu_perf.analysis.comparison import speedup
from tpu_perf.analysis.lanes import PARTS, breakdown
from tpu_perf.analysis.rung_record import RungRecord
from tpu_perf.export.report.figures import GREY, Figure, colour, layout, shown, time_unit

ROW_HEIGHT = 44
LABELS = {
    "python": "Python between ops",
    "dispatch": "op dispatch",
    "flush": "flush",
    "execute": "XLA enqueue",
    "compile": "compile",
    "fallback": "host fallback",
    "transfer": "transfer",
    "sync": "sync inside the step",
    "fence": "waiting at the fence",
}
PART_COLOURS = {
    "python": GREY,
    "dispatch": "#E69F00",
    "flush": "#F0E442",
    "execute": "#0072B2",
    "compile": "#D55E00",
    "fallback": "#D55E00",  # hatched, to differ from compile
    "transfer": "#CC79A7",
    "sync": "#56B4E9",
    "fence": "#009E73",
}


def _height(rows: int) -> int:
    return 90 + ROW_HEIGHT * max(2, rows)


def _names(rungs: list[RungRecord]) -> list[str]:
    return [shown(rung.name) for rung in rungs]


def _rows_axis(rungs: list[RungRecord]) -> dict[str, Any]:
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": _names(rungs),
        "autorange": "reversed",
        "automargin": True,
        "ticklabelstandoff": 6,
    }


def _bars(
    rungs: list[RungRecord], metric: str, factor: float, colours: list[str]
) -> dict[str, Any]:
    """Horizontal bars with 95 % intervals and the value written at the foot of each bar."""
    metrics = [rung.metric(metric) for rung in rungs]
    values = [factor * (m.value or 0.0) for m in metrics]
    highs = [factor * (m.high if m.high is not None else m.value or 0.0) for m in metrics]
    lows = [factor * (m.low if m.low is not None else m.value or 0.0) for m in metrics]
    return {
        "type": "bar",
        "orientation": "h",
        "y": _names(rungs),
        "x": values,
        "marker": {"color": colours},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [high - value for high, value in zip(highs, values, strict=True)],
            "arrayminus": [value - low for low, value in zip(lows, values, strict=True)],
            "color": GREY,
            "thickness": 2,
            "width": 6,
        },
        "customdata": [_hover(metric, rung) for rung in rungs],
        "hovertemplate": "%{y}: %{customdata}<extra></extra>",
        "showlegend": False,
    }


def _hover(metric: str, rung: RungRecord) -> str:
    number = rung.metric(metric)
    bounds = quantities.interval(metric, number)
    return quantities.text(metric, number) + (f" (95 %: {bounds})" if bounds else "")


def _value_labels(rungs: list[RungRecord], metric: str, factor: float) -> list[dict[str, Any]]:
    """Values written right of each interval, as annotations so that no error bar crosses them."""
    labels = []
    for rung in rungs:
        number = rung.metric(metric)
        if number.value is None:
            continue
        end = number.high if number.high is not None else number.value
        labels.append(
            {
                "x": factor * end,
                "y": shown(rung.name),
                "text": quantities.text(metric, number),
                "showarrow": False,
                "xanchor": "left",
                "xshift": 8,
            }
        )
    return labels


def step_time(rungs: list[RungRecord], colours: dict[str, str]) -> Figure | None:
    """Median step time per rung with its interval."""
    rungs = [rung for rung in rungs if rung.value("step_time") is not None]
    if not rungs:
        return None
    factor, unit = time_unit([rung.value("step_time") or 0 for rung in rungs])
    return Figure(
        id="step-time",
        title="Step time",
        description=f"Median of fenced, compile-free steps, in {unit}; whiskers are 95 % "
        "intervals. Shorter is better.",
        data=[_bars(rungs, "step_time", factor, [colours[rung.name] for rung in rungs])],
        layout=layout(
            xaxis={"title": {"text": f"step time ({unit})"}, "rangemode": "tozero"},
            yaxis=_rows_axis(rungs),
            annotations=_value_labels(rungs, "step_time", factor),
            margin={"l": 70, "r": 90, "t": 36, "b": 56},
        ),
        height=_height(len(rungs)),
    )


def mfu(rungs: list[RungRecord], colours: dict[str, str]) -> Figure | None:
    """Model FLOPs utilisation per rung with its interval."""
    rungs = [rung for rung in rungs if rung.value("mfu") is not None]
    if not rungs:
        return None
    return Figure(
        id="mfu",
        title="Model FLOPs utilisation",
        description="Model FLOPs over step time and peak, in %; whiskers are 95 % intervals. "
        "Longer is better.",
        data=[_bars(rungs, "mfu", 100, [colours[rung.name] for rung in rungs])],
        layout=layout(
            xaxis={"title": {"text": "MFU (% of peak)"}, "rangemode": "tozero"},
            yaxis=_rows_axis(rungs),
            annotations=_value_labels(rungs, "mfu", 100),
            margin={"l": 70, "r": 80, "t": 36, "b": 56},
        ),
        height=_height(len(rungs)),
    )


def waterfall(rungs: list[RungRecord]) -> Figure | None:
    """Step time from rung to rung: what each one takes off or adds."""
    rungs = [rung for rung in rungs if rung.value("step_time") is not None]
    if len(rungs) < 2:
        return None
    times = [rung.value("step_time") or 0.0 for rung in rungs]
    factor, unit = time_unit(times)
    deltas = [times[0], *(after - before for before, after in pairwise(times))]
    tops = [times[0], *(max(pair) for pair in pairwise(times))]
    labels = [quantities.seconds(times[0]), *(_step_label(*pair) for pair in pairwise(rungs))]
    return Figure(
        id="waterfall",
        title="From rung to rung",
        description="How each rung changes the step time of the rung before it: green is time "
        "saved, orange time lost. Above each bar its step time, and the speed-up over the rung "
        "before (median of paired rounds).",
        data=[
            {
                "type": "waterfall",
                "x": _names(rungs),
                "y": [factor * delta for delta in deltas],
                "measure": ["absolute"] + ["relative"] * (len(rungs) - 1),
                "customdata": labels,
                "hovertemplate": "%{x}: %{customdata}<extra></extra>",
                "textposition": "none",
                "decreasing": {"marker": {"color": "#009E73"}},
                "increasing": {"marker": {"color": "#D55E00"}},
                "totals": {"marker": {"color": "#0072B2"}},
                "connector": {"line": {"color": GREY, "width": 1, "dash": "dot"}},
                "showlegend": False,
            }
        ],
        layout=layout(
            yaxis={
                "title": {"text": f"step time ({unit})"},
                "range": [0, 1.2 * factor * max(times)],
            },
            xaxis={"type": "category", "automargin": True},
            annotations=[
                {
                    "x": shown(rung.name),
                    "y": factor * top,
                    "text": label,
                    "showarrow": False,
                    "yanchor": "bottom",
                }
                for rung, top, label in zip(rungs, tops, labels, strict=True)
            ],
        ),
        height=380,
    )


def _step_label(before: RungRecord, after: RungRecord) -> str:
    ratio = speedup(before, after).value
    faster = "" if ratio is None else f"<br>{quantities.digits(ratio)}x"
    return f"{quantities.seconds(after.value('step_time') or 0.0)}{faster}"


def where_time_goes(rungs: list[RungRecord]) -> Figure | None:
    """A step's wall time by part, stacked, one bar per rung; every instant counted once."""
    found = [
        (rung, parts)
        for rung in rungs
        if rung.ok and rung.tables is not None and (parts := breakdown(rung.tables)) is not None
    ]
    if not found:
        return None
    factor, unit = time_unit([parts.total_s for _, parts in found])
    names = _names([rung for rung, _ in found])
    data = []
    for part in PARTS:
        seconds = [parts.parts[part] for _, parts in found]
        if not any(seconds):
            continue
        shares = [parts.share(part) for _, parts in found]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": LABELS[part],
                "y": names,
                "x": [factor * value for value in seconds],
                "marker": {
                    "color": PART_COLOURS[part],
                    "pattern": {"shape": "/" if part == "fallback" else ""},
                },
                "customdata": [
                    f"{quantities.seconds(value)}, {quantities.percent(share)}"
                    for value, share in zip(seconds, shares, strict=True)
                ],
                "hovertemplate": f"%{{y}}, {LABELS[part]}: %{{customdata}}<extra></extra>",
            }
        )
    return Figure(
        id="where-time-goes",
        title="Where a step's time goes",
        description=f"Mean over timed steps, in {unit}. Each instant is counted once: events nest, "
        "and the innermost has it.",
        terms={LABELS[part]: meaning for part, meaning in PARTS.items()},
        data=data,
        layout=layout(
            barmode="stack",
            xaxis={"title": {"text": f"time per step ({unit})"}, "rangemode": "tozero"},
            yaxis=_rows_axis([rung for rung, _ in found]),
            legend={
                "orientation": "h",
                "yanchor": "bottom",
                "y": 1.02,
                "x": 0,
                "traceorder": "normal",
            },
            margin={"l": 70, "r": 24, "t": 60, "b": 56},
        ),
        height=_height(len(found)) + 40,
    )


def rung_colours(rungs: list[RungRecord]) -> dict[str, str]:
    """One colour for each rung, the same in every chart."""
    return {rung.name: colour(index) for index, rung in enumerate(rungs)}
