"""A history as a chart file: PNG, SVG or one HTML page that works offline."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from tpu_perf.analysis import quantities
from tpu_perf.analysis.history import History, HistoryPoint, HistorySeries
from tpu_perf.errors import ConfigError, StoredRunError
from tpu_perf.export.report.figures import Figure, byte_unit, colour, dash, layout, shown, time_unit
from tpu_perf.export.report.pictures import Format, picture
from tpu_perf.export.report.rung_tables import TITLES
from tpu_perf.record.metric import METRIC_UNITS

FORMATS = (*get_args(Format), "html")


def write_chart(found: History, path: Path) -> None:
    """Write the chart in the format that the file's name ends in.

    Raises ConfigError for another ending, StoredRunError where there is nothing to draw.
    """
    format = path.suffix.removeprefix(".").lower()
    if format not in FORMATS:
        raise ConfigError(f"{path} does not end in one of {', '.join(f'.{f}' for f in FORMATS)}")
    figure = chart(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    if format == "html":
        path.write_text(_page(figure), encoding="utf-8")
    else:
        path.write_bytes(picture(figure, "svg" if format == "svg" else "png"))


def _page(figure: Figure) -> str:
    from plotly.graph_objects import Figure as Plotly

    page = Plotly(data=figure.data, layout={**figure.layout, "template": "plotly_white"})
    page.update_layout(title=figure.title, paper_bgcolor="white", height=600)
    text: str = page.to_html(
        include_plotlyjs=True, config={"displaylogo": False, "plotlyServerURL": ""}
    )
    return text


def chart(found: History) -> Figure:
    """A line for each rung of each ladder, over the time its runs began."""
    unit = METRIC_UNITS[found.metric]
    values = [value for series in found.series for value in series.values]
    if not values:
        raise StoredRunError(f"no run below {found.directory} knows its {found.metric}")
    factor = 1.0
    if unit == "s":
        factor, unit = time_unit(values)
    elif unit == "bytes":
        scale, unit = byte_unit(max(values))
        factor = 1 / scale
    title = TITLES.get(found.metric, found.metric)
    data = [_line(found.metric, series, number, factor) for number, series in
            enumerate(s for s in found.series if s.values)]  # fmt: skip
    return Figure(
        id="history",
        title=f"{title} over time",
        description="Each point is a run, whiskers its 95 % interval; ladder / rung in the legend.",
        data=data,
        layout=layout(
            xaxis={"title": {"text": "run began (UTC)"}, "type": "date"},
            yaxis={"title": {"text": f"{title} ({unit})"}, "rangemode": "tozero"},
            margin={"l": 70, "r": 24, "t": 80, "b": 56},
        ),
        height=420 + 16 * (len(data) // 4),
    )


def _line(metric: str, series: HistorySeries, number: int, factor: float) -> dict[str, Any]:
    points = [p for p in series.points if p.metric.value is not None and _time(p) is not None]
    numbers = [factor * (p.metric.value or 0.0) for p in points]
    highs = [factor * (p.metric.high or p.metric.value or 0.0) for p in points]
    lows = [factor * (p.metric.low or p.metric.value or 0.0) for p in points]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": shown(f"{series.ladder} / {series.rung}"),
        "x": [_time(point) for point in points],
        "y": numbers,
        "line": {"color": colour(number), "dash": dash(number), "width": 2},
        "marker": {"size": 6, "symbol": "circle"},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [high - value for high, value in zip(highs, numbers, strict=True)],
            "arrayminus": [value - low for low, value in zip(lows, numbers, strict=True)],
            "thickness": 1,
            "width": 2,
        },
        "text": [
            shown(f"{quantities.text(metric, p.metric)}, {p.commit or 'no commit'}, {p.path}")
            for p in points
        ],
        "hovertemplate": "%{x}: %{text}<extra>%{fullData.name}</extra>",
    }


def _time(point: HistoryPoint) -> datetime | None:
    try:
        return datetime.fromisoformat(point.started_at or "")
    except ValueError:
        return None
