"""Events of one line must nest: those that do not go on lines of their own, never shortened."""

from __future__ import annotations

import numpy as np

from tpu_perf.xplane.event_encoding import Integers


def nested_levels(start_ns: Integers, end_ns: Integers) -> Integers:
    """For events sorted by start, parents first: the number of the line that each goes on.

    Line 0 takes every event that lies inside, or after, what is open on it; line 1 what line 0
    could not take, and so on. Events that only touch do not overlap.
    """
    levels = np.zeros(len(start_ns), dtype=np.int64)
    waiting = np.arange(len(start_ns))
    level = 0
    while len(waiting):
        refused = _refused(start_ns[waiting].tolist(), end_ns[waiting].tolist())
        waiting = waiting[refused]
        level += 1
        levels[waiting] = level
    return levels


def _refused(starts: list[int], ends: list[int]) -> list[int]:
    open_ends: list[int] = []
    out = []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            out.append(number)
        else:
            open_ends.append(end)
    return out
