"""From a stored run to the timelines of its trace files, cut by step where one would be too large.

A viewer holds a million slices with ease and ten millions not at all, so a run with more events
becomes several files of consecutive steps, all counted from the run's first event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from tpu_perf.export.perfetto import counters
from tpu_perf.export.perfetto.device_lanes import device_tracks, with_arrows
from tpu_perf.export.perfetto.host_lanes import Names, dispatch_tracks, host_tracks
from tpu_perf.export.perfetto.tracks import Timeline
from tpu_perf.record.events import EVENT_KINDS
from tpu_perf.record.store import StoredRun

#: Events of one file. The limit of viewers is memory: about 1 KB a slice.
EVENTS_PER_FILE = 1_000_000


@dataclass(slots=True)
class Part:
    """One trace file: the events that begin in [begin_ns, end_ns), and the steps among them."""

    tables: dict[str, pd.DataFrame]
    steps: pd.DataFrame
    misses: pd.DataFrame
    timeline: Timeline
    oversized: bool = False

    @property
    def label(self) -> str:
        numbers = self.steps["step"]
        return f"steps-{numbers.min()}-{numbers.max()}" if len(numbers) else "no-steps"


def start_column(kind: str) -> str:
    return "t_ns" if kind == "memory" else "t_start_ns"


def origin_ns(tables: Mapping[str, pd.DataFrame], steps: pd.DataFrame) -> int | None:
    """The earliest time of the run, None if it holds no event and no step."""
    firsts = [
        int(frame[start_column(kind)].min()) for kind, frame in tables.items() if not frame.empty
    ]
    firsts += [int(steps["t_start_ns"].min())] if not steps.empty else []
    return min(firsts, default=None)


def parts(
    stored: StoredRun,
    tables: dict[str, pd.DataFrame],
    steps: pd.DataFrame,
    limit: int = EVENTS_PER_FILE,
) -> Iterator[Part]:
    """The files of a run in time order; one unless it has more than `limit` events."""
    names, programs = Names(stored), stored.programs()
    all_misses, source = counters.with_misses(tables)
    edges = boundaries(tables, steps, limit)
    for begin, end in pairwise(edges):
        cut = {
            kind: _within(frame, start_column(kind), begin, end) for kind, frame in tables.items()
        }
        its_steps = _within(steps, "t_start_ns", begin, end)
        misses = _within(all_misses, "t_start_ns", begin, end)
        timeline = Timeline()
        timeline.tracks += host_tracks(cut, its_steps, names)
        on_device, leaving = device_tracks(cut, names, timeline.notes)
        for track in dispatch_tracks(cut, names):
            arrows = leaving is not None and track.name == "execute"
            timeline.tracks.append(with_arrows(track, leaving) if arrows else track)  # type: ignore[arg-type]
        timeline.tracks += on_device
        timeline.counters += counters.counters(cut, its_steps, programs, misses, timeline.notes)
        if not misses.empty:
            timeline.notes.append(f"{counters.CACHE_MISSES}: cumulative, from {source}")
        size = sum(len(frame) for frame in cut.values())
        yield Part(cut, its_steps, misses, timeline, oversized=size > limit)


def _within(frame: pd.DataFrame, column: str, begin: float, end: float) -> pd.DataFrame:
    if begin == -np.inf and end == np.inf:
        return frame
    return frame[(frame[column] >= begin) & (frame[column] < end)]


def boundaries(tables: Mapping[str, pd.DataFrame], steps: pd.DataFrame, limit: int) -> list[float]:
    """Times in ns at which files begin and end, -inf and inf outermost. Cuts lie at starts of
    steps, as few as keep each file within `limit` events; a larger step has a file of its own."""
    times = np.sort(
        np.concatenate(
            [frame[start_column(kind)].to_numpy(dtype=np.int64) for kind, frame in tables.items()]
        )
    )
    if len(times) <= limit or len(steps) < 2:
        return [-np.inf, np.inf]
    starts = np.sort(steps["t_start_ns"].to_numpy(dtype=np.int64))
    before = [*np.searchsorted(times, starts).tolist(), len(times)]
    edges: list[float] = [-np.inf]
    taken = 0
    for number in range(1, len(starts)):
        if before[number + 1] - taken > limit:
            edges.append(float(starts[number]))
            taken = before[number]
    return [*edges, np.inf]


def load_tables(stored: StoredRun) -> dict[str, pd.DataFrame]:
    return {kind: stored.events(kind) for kind in EVENT_KINDS}
