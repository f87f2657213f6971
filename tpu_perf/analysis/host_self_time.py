"""Host time of each dispatch without the dispatches inside it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tpu_perf.analysis.rung_record import RunTables


def self_times(events: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Nanoseconds of each event less those of the events nested in it on the same thread.

    Events whose thread is not known (-1) count as one thread's.
    """
    starts, ends = events["t_start_ns"].to_numpy(np.int64), events["t_end_ns"].to_numpy(np.int64)
    threads = events["thread"].to_numpy(np.int64)
    order = np.lexsort((-ends, starts, threads))
    starts, ends, threads = starts[order], ends[order], threads[order]
    own = ends - starts
    nested = (starts[1:] < np.maximum.accumulate(ends)[:-1]) & (threads[1:] == threads[:-1])
    if nested.any():
        _take_nested(own, starts.tolist(), ends.tolist(), threads.tolist())
    out = np.empty_like(own)
    out[order] = np.maximum(own, 0)
    return np.asarray(out, np.int64)


def _take_nested(
    own: npt.NDArray[np.int64], starts: list[int], ends: list[int], threads: list[int]
) -> None:
    """Take from each event what the events directly inside it cover, in place."""
    open_row: list[int] = []
    taken = [0] * len(starts)
    for row, start in enumerate(starts):
        while open_row and (threads[open_row[-1]] != threads[row] or ends[open_row[-1]] <= start):
            open_row.pop()
        if open_row:
            parent = open_row[-1]
            taken[parent] += min(ends[row], ends[parent]) - start
        open_row.append(row)
    own -= np.asarray(taken, np.int64)


def dispatches(tables: RunTables) -> pd.DataFrame:
    """Dispatches of steady steps: op, program, site, step, self_ns; ops as text."""
    events = tables.timed_events("dispatch")
    return pd.DataFrame(
        {
            "op": events["op"].astype(str).to_numpy(),
            "program": events["program"].to_numpy(np.int64),
            "site": events["site"].to_numpy(np.int64),
            "step": events["step"].to_numpy(np.int64),
            "t_start_ns": events["t_start_ns"].to_numpy(np.int64),
            "self_ns": self_times(events),
        }
    )
