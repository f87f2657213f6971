"""Slices of one track must nest: those that would not are given a lane of their own beside it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tpu_perf.errors import ExportMismatch
from tpu_perf.export.perfetto.tracks import Nanoseconds


def place(
    start_ns: Nanoseconds, end_ns: Nanoseconds
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The order in which slices begin (outer before inner), and the lane of each in that order.

    Lane 0 is the track itself. A slice goes to the first lane on which it lies wholly inside, or
    wholly after, what is open there; no slice is shortened. Slices that only touch do not
    overlap. Raises ExportMismatch where a slice ends before it begins.
    """
    if np.any(end_ns < start_ns):
        number = int(np.argmax(end_ns < start_ns))
        raise ExportMismatch(
            f"an event ends {start_ns[number] - end_ns[number]} ns before it begins "
            f"(at {start_ns[number]} ns of the run's clock)",
            hint="the run's event tables are damaged; record it again",
        )
    order = np.lexsort((-end_ns, start_ns))
    lanes = np.zeros(len(order), dtype=np.int64)
    open_ends: list[list[int]] = [[]]
    pairs = zip(start_ns[order].tolist(), end_ns[order].tolist(), strict=True)
    for position, (start, end) in enumerate(pairs):
        for lane, ends in enumerate(open_ends):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                if lane:
                    lanes[position] = lane
                break
        else:
            lanes[position] = len(open_ends)
            open_ends.append([end])
    return order, lanes
