"""One metric over time, a series for each rung of each ladder, with commit and environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tpu_perf.analysis.history_index import UNREADABLE, open_index
from tpu_perf.errors import ConfigError, StoredRunError
from tpu_perf.record.metric import METRIC_UNITS, Metric

_QUERY = """
SELECT runs.path, ladder, rung, started_at, status, runs.reason, git_commit, environment,
       value, unit, provenance, low, high, metrics.reason
FROM runs LEFT JOIN metrics ON metrics.path = runs.path AND metrics.name = ?
WHERE status != ? AND (? IS NULL OR ladder = ?) AND (? IS NULL OR rung = ?)
ORDER BY ladder, rung, started_at IS NULL, started_at, runs.path
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """A run. `path` is relative to the directory; `changed` is what of the environment is not as
    in the series' run before: name -> (before, now)."""

    path: str
    started_at: str | None
    status: str
    reason: str | None
    commit: str | None
    environment: Mapping[str, str]
    changed: Mapping[str, tuple[str, str]]
    metric: Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySeries:
    """The runs of one rung of one ladder, oldest first; those without a known start last."""

    ladder: str
    rung: str
    points: tuple[HistoryPoint, ...]

    @property
    def values(self) -> list[float]:
        return [p.metric.value for p in self.points if p.metric.value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """`unreadable`: run directories whose run.json is damaged, each with the reason."""

    directory: Path
    metric: str
    series: tuple[HistorySeries, ...]
    unreadable: Mapping[str, str]


def history(
    directory: Path,
    metric: str = "step_time",
    *,
    ladder: str | None = None,
    rung: str | None = None,
    rebuild: bool = False,
) -> History:
    """Read one metric of every run below a directory through its index.

    Raises ConfigError for an unknown metric, StoredRunError if there is no such directory.
    """
    if metric not in METRIC_UNITS:
        raise ConfigError(f"unknown metric {metric!r}", hint=f"known: {', '.join(METRIC_UNITS)}")
    if not directory.is_dir():
        raise StoredRunError(f"{directory} is not a directory")
    with closing(open_index(directory, rebuild=rebuild)) as index:
        selected = (metric, UNREADABLE, ladder, ladder, rung, rung)
        rows = index.execute(_QUERY, selected).fetchall()
        damaged = index.execute("SELECT path, reason FROM runs WHERE status = ?", (UNREADABLE,))
        unreadable = dict(damaged.fetchall())
    series: dict[tuple[str, str], list[HistoryPoint]] = {}
    environments: dict[str, dict[str, str]] = {}  # few differ, so each is parsed once
    for path, of_ladder, of_rung, started, status, why, commit, machine, *of_metric in rows:
        if machine not in environments:
            environments[machine] = json.loads(machine)
        points = series.setdefault((of_ladder, of_rung), [])
        points.append(
            HistoryPoint(
                path=path,
                started_at=started,
                status=status,
                reason=why,
                commit=commit,
                environment=environments[machine],
                changed=_changed(points, environments[machine]),
                metric=_metric(metric, status, why, of_metric),
            )
        )
    return History(
        directory=directory,
        metric=metric,
        series=tuple(
            HistorySeries(ladder=of_ladder, rung=of_rung, points=tuple(points))
            for (of_ladder, of_rung), points in series.items()
        ),
        unreadable=unreadable,
    )


def _changed(
    earlier: list[HistoryPoint], environment: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    if not earlier or earlier[-1].environment is environment:
        return {}
    before = earlier[-1].environment
    return {
        name: (before.get(name, "none"), environment.get(name, "none"))
        for name in {**before, **environment}
        if before.get(name) != environment.get(name)
    }


def _metric(name: str, status: str, why: str | None, row: list[object]) -> Metric:
    value, unit, provenance, low, high, reason = row
    if value is not None:
        found = {"value": value, "unit": unit, "provenance": provenance, "low": low, "high": high}
        return Metric.from_json(found)
    told = reason or (f"{status}: {why}" if status != "ok" else "the ladder was never completed")
    return Metric.missing(METRIC_UNITS[name], str(told))
