"""A history on the terminal: a sparkline and the newest runs of every series."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from tpu_perf.analysis import quantities
from tpu_perf.analysis.history import History, HistoryPoint, HistorySeries
from tpu_perf.record.metric import Metric

BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 60


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """The values from lowest to highest as bars, medians of neighbours where there are too many.

    >>> sparkline([1.0, 2.0, 8.0])
    '▁▂█'
    """
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [median(values[a:b]) for a, b in itertools.pairwise(edges)]
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)


def history_lines(found: History, last: int) -> Iterator[str]:
    """The lines to print; of each series the newest `last` runs, 0 for all."""
    if not found.series:
        yield f"no runs below {found.directory}"
    for series in found.series:
        yield from _series_lines(found.metric, series, last)
    for path, reason in list(found.unreadable.items())[:5]:
        yield f"unreadable: {_clean(path)}: {_clean(reason)}"
    if len(found.unreadable) > 5:
        yield f"unreadable: {len(found.unreadable) - 5} more"


def _series_lines(metric: str, series: HistorySeries, last: int) -> Iterator[str]:
    values = series.values
    shown = ""
    if values:
        ends = [
            quantities.text(metric, _plain(metric, series, edge))
            for edge in (min(values), max(values))
        ]
        shown = f"  {sparkline(values)}  {ends[0]} to {ends[1]}"
    runs = quantities.counted(len(series.points), "run")
    yield f"{_clean(series.ladder)} / {_clean(series.rung)}  {metric}, {runs}{shown}"
    first = max(0, len(series.points) - last) if last else 0
    before: float | None = None
    for number, point in enumerate(series.points):
        if number >= first:
            yield _point_line(metric, point, before)
        before = point.metric.value if point.metric.value is not None else before


def _plain(metric: str, series: HistorySeries, value: float) -> Metric:
    unit = next(p.metric.unit for p in series.points if p.metric.value is not None)
    return Metric(value=value, unit=unit, provenance="derived")


def _point_line(metric: str, point: HistoryPoint, before: float | None) -> str:
    started = (point.started_at or "unknown time")[:16].replace("T", " ")
    commit = _clean(point.commit or "")[:10] or "no commit"
    value = point.metric.value
    if value is None:
        return f"  {started:<16}  {commit:<10}  -  {_clean(point.metric.reason or '')[:60]}"
    letter = (point.metric.provenance or "?")[0]
    text = f"{quantities.text(metric, point.metric)} {letter}"
    change = "" if not before else f"{(value / before - 1) * 100:+,.1f} %"
    bounds = quantities.interval(metric, point.metric)
    what = ", ".join(f"{n} {a} -> {b}" for n, (a, b) in point.changed.items())
    line = f"  {started:<16}  {commit:<10}  {text:>13}  {bounds:<15}  {change:>9}  {_clean(what)}"
    return line.rstrip()


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def history_document(found: History) -> dict[str, Any]:
    """The document behind `history --json`."""
    return {
        "schema_version": 1,
        "dir": str(found.directory),
        "metric": found.metric,
        "series": [
            {
                "ladder": series.ladder,
                "rung": series.rung,
                "runs": [
                    {
                        "run": point.path,
                        "started_at": point.started_at,
                        "status": point.status,
                        "commit": point.commit,
                        "environment": dict(point.environment),
                        "metric": point.metric.to_json(),
                    }
                    for point in series.points
                ],
            }
            for series in found.series
        ],
        "unreadable": dict(found.unreadable),
    }
