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
    own = ends - starts
    open_row: list[int] = []
    thread: int | None = None
    for row in np.lexsort((-ends, starts, threads)):
        if threads[row] != thread:
            open_row, thread = [], threads[row]
        while open_row and ends[open_row[-1]] <= starts[row]:
            open_row.pop()
        if open_row:
            parent = open_row[-1]
            own[parent] -= min(ends[row], ends[parent]) - starts[row]
        open_row.append(row)
    return np.asarray(np.maximum(own, 0), np.int64)


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
