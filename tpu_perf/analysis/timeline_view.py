"""A stretch of a run's timeline with as many boxes as a screen can show, however many events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tpu_perf.analysis.rung_record import RunTables
from tpu_perf.record.events import Tier

Integers = npt.NDArray[np.int64]

#: Kinds of event that become a lane of their own: the lane's name and the column that names a box.
_KINDS: dict[str, tuple[str, str]] = {
    "annotation": ("modules", "name"),
    "dispatch": ("ops", "op"),
    "flush": ("flushes", "reason"),
    "execute": ("enqueued programs", "program"),
    "compile": ("compiles", "program"),
    "fallback": ("host fallbacks", "op"),
    "transfer": ("transfers", "direction"),
    "sync": ("waits for the device", "reason"),
    "device": ("device", "instruction"),
}
#: Kinds whose events lie in one lane for each value of this column.
_SPLIT = {"dispatch": "thread", "annotation": "thread", "device": "lane"}

BOX_COLUMNS = ["start_ns", "end_ns", "label", "events", "busy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Spans of one lane, sorted by start; `codes` index `labels`. `reach` is the latest end of
    any span so far, `sites` the site of each, -1 where not known."""

    kind: str
    name: str
    starts: Integers
    ends: Integers
    reach: Integers
    codes: Integers
    labels: tuple[str, ...]
    sites: Integers

    def within(self, begin_ns: int, end_ns: int) -> slice:
        """The spans that may overlap the stretch: from the first that reaches into it."""
        low = int(np.searchsorted(self.reach, begin_ns, side="right"))
        return slice(low, max(low, int(np.searchsorted(self.starts, end_ns, side="left"))))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneView:
    """`boxes` has BOX_COLUMNS: an event, or where `spans` are too many the events of a slice of
    time under the label that takes most of it; `busy` is the share of the box that is covered."""

    kind: str
    name: str
    boxes: pd.DataFrame
    spans: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All lanes of a run. Times are those of the events, in nanoseconds."""

    lanes: tuple[Lane, ...]
    begin_ns: int
    end_ns: int

    def view(self, begin_ns: int, end_ns: int, columns: int) -> tuple[LaneView, ...]:
        """What lies between two moments, in about 2 x `columns` boxes a lane at most."""
        return tuple(_lane_view(lane, begin_ns, max(end_ns, begin_ns + 1), columns)
                     for lane in self.lanes)  # fmt: skip

    def longest(self, begin_ns: int, end_ns: int, kind: str) -> pd.DataFrame:
        """Of one kind, what takes the time between two moments: label, site, events, total_ns
        (the parts inside the stretch; nested events count in each), most time first."""
        rows = [pd.DataFrame({"label": [], "site": [], "events": [], "total_ns": []})]
        for lane in self.lanes:
            if lane.kind != kind:
                continue
            part = lane.within(begin_ns, end_ns)
            inside = np.minimum(lane.ends[part], end_ns) - np.maximum(lane.starts[part], begin_ns)
            spans = pd.DataFrame(
                {"code": lane.codes[part], "site": lane.sites[part], "ns": inside}
            )[inside > 0]
            found = spans.groupby(["code", "site"])["ns"].agg(["size", "sum"]).reset_index()
            labels = np.asarray(lane.labels, dtype=object)[found["code"].to_numpy(np.int64)]
            rows.append(
                pd.DataFrame(
                    {"label": labels, "site": found["site"], "events": found["size"],
                     "total_ns": found["sum"]}
                )
            )  # fmt: skip
        merged = pd.concat(rows).groupby(["label", "site"], as_index=False).sum()
        return merged.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


def timeline(tables: RunTables) -> Timeline:
    """Read every event into lanes: steps, then the host's, then the device's."""
    lanes = [lane for lane in (_steps(tables), *_of_events(tables)) if len(lane.starts)]
    begin = min((int(lane.starts[0]) for lane in lanes), default=0)
    end = max((int(lane.reach[-1]) for lane in lanes), default=0)
    return Timeline(lanes=tuple(lanes), begin_ns=begin, end_ns=end)


def _steps(tables: RunTables) -> Lane:
    steps = tables.steps
    names = [
        f"{phase} step {step}" for step, phase in zip(steps["step"], steps["phase"], strict=True)
    ]
    return _lane("steps", "steps", steps, pd.Series(names, index=steps.index, dtype="object"))


def _of_events(tables: RunTables) -> Iterator[Lane]:
    for kind, (name, column) in _KINDS.items():
        events = tables.events(kind)
        if events.empty:
            continue
        labels = _programs(tables, events) if column == "program" else events[column]
        by = _SPLIT.get(kind)
        if by == "thread" and int(events["thread"].max()) <= 0:
            by = None  # steps whose threads were not looked at (-1) were run by the only one
        parts = list(events.groupby(by, observed=True).indices.items()) if by else []
        if len(parts) < 2:
            yield _lane(kind, name, events, labels)
            continue
        for value, rows in parts:
            thread = "unknown thread" if value == -1 else f"thread {value}"
            of = f"{name}, {thread}" if by == "thread" else f"{name}: {value}"
            yield _lane(kind, of, events.iloc[rows], labels.iloc[rows])


def _programs(tables: RunTables, events: pd.DataFrame) -> pd.Series[str]:
    """Names of programs by their numbers, as categories; what was not in memory says so."""
    named = tables.programs["name"].astype(str).to_dict()
    codes, numbers = pd.factorize(events["program"])
    labels = [f"{number} {named.get(number, 'unknown program')}" for number in numbers]
    found = pd.Series(pd.Categorical.from_codes(codes, pd.Index(labels)), index=events.index)
    built = events["tier"].to_numpy() == Tier.COMPILED
    if built.any() and not built.all():
        text = found.astype("object")
        return text.where(~built, text + " (compiled)")
    return found


def _lane(kind: str, name: str, events: pd.DataFrame, labels: pd.Series[str]) -> Lane:
    starts = events["t_start_ns"].to_numpy(np.int64)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], events["t_end_ns"].to_numpy(np.int64)[order]
    categories = labels.astype("category").cat
    names, found = categories.categories, categories.codes.to_numpy(np.int64)
    codes = np.where(found < 0, len(names), found).astype(np.int64)
    sites = events["site"].to_numpy(np.int64) if "site" in events else np.full(len(starts), -1)
    return Lane(
        kind=kind,
        name=name,
        starts=starts,
        ends=ends,
        reach=np.maximum.accumulate(ends) if len(ends) else ends,
        codes=codes[order],
        labels=(*map(str, names), "unknown"),
        sites=sites[order],
    )


def _lane_view(lane: Lane, begin: int, end: int, columns: int) -> LaneView:
    part = lane.within(begin, end)
    starts, ends = lane.starts[part], lane.ends[part]
    visible = ends > begin
    starts, ends, codes = starts[visible], ends[visible], lane.codes[part][visible]
    exact = len(starts) <= 2 * columns
    if exact:
        boxes = _exact(lane, starts, ends, codes)
    else:
        wide = (ends - starts) * columns > (end - begin)
        boxes = pd.concat(
            [
                _exact(lane, starts[wide], ends[wide], codes[wide]),
                _slices(lane, starts[~wide], ends[~wide], codes[~wide], begin, end, columns),
            ],
            ignore_index=True,
        )
    return LaneView(kind=lane.kind, name=lane.name, boxes=boxes, spans=len(starts), exact=exact)


def _exact(lane: Lane, starts: Integers, ends: Integers, codes: Integers) -> pd.DataFrame:
    labels = np.asarray(lane.labels, dtype=object)[codes]
    return pd.DataFrame(
        {"start_ns": starts, "end_ns": ends, "label": labels, "events": 1, "busy": 1.0}
    )


def _slices(
    lane: Lane, starts: Integers, ends: Integers, codes: Integers, begin: int, end: int,
    columns: int,
) -> pd.DataFrame:  # fmt: skip
    """Spans shorter than a slice; each is counted and named in the slice that holds its middle."""
    edges = np.linspace(begin, end, columns + 1).astype(np.int64)
    middle = np.clip((starts + ends) // 2, begin, end - 1)
    where = np.clip(np.searchsorted(edges, middle, side="right") - 1, 0, columns - 1)
    spans = pd.DataFrame({"slice": where, "code": codes, "ns": ends - starts})
    by_label = spans.groupby(["slice", "code"])["ns"].sum().reset_index()
    # The last of each slice takes most time; ties go to the higher code, always the same one.
    most = by_label.sort_values(["slice", "ns", "code"]).drop_duplicates("slice", keep="last")
    chosen = most["slice"].to_numpy(np.int64)
    width = np.maximum(1, edges[chosen + 1] - edges[chosen])
    covered = _covered_until(starts, ends, edges)
    return pd.DataFrame(
        {
            "start_ns": edges[chosen],
            "end_ns": edges[chosen + 1],
            "label": np.asarray(lane.labels, dtype=object)[most["code"].to_numpy(np.int64)],
            "events": np.bincount(where, minlength=columns)[chosen],
            "busy": (covered[chosen + 1] - covered[chosen]) / width,
        }
    )


def _covered_until(starts: Integers, ends: Integers, moments: Integers) -> npt.NDArray[np.float64]:
    """Nanoseconds before each moment that any span covers; nested ones count once. Spans are
    sorted by start."""
    if not len(starts):
        return np.zeros(len(moments))
    reach = np.maximum.accumulate(ends)
    opens = np.concatenate([[True], starts[1:] > reach[:-1]])  # nothing before it lasts so long
    first = np.flatnonzero(opens)
    begins, lasts = starts[first], reach[np.concatenate([first[1:] - 1, [len(starts) - 1]])]
    done = np.concatenate([[0], np.cumsum(lasts - begins)])
    times = np.stack([begins, lasts], axis=1).ravel().astype(np.float64)
    totals = np.stack([done[:-1], done[1:]], axis=1).ravel().astype(np.float64)
    return np.interp(moments.astype(np.float64), times, totals)
