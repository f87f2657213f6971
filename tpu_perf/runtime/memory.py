"""Live and peak device bytes, counted exactly from the lifetimes of buffers."""

from __future__ import annotations

import time

from tpu_perf.recorder import active
from tpu_perf.recorder.packing import memory_event

_clock = time.perf_counter_ns


class Memory:
    """Counters of one device. `allocated` is now, `peak` since the last reset, in bytes.

    Updates are straight-line code without calls between read and write, which CPython does not
    interrupt, so the counts are exact with several threads too.
    """

    __slots__ = ("allocated", "allocations", "peak", "releases")

    def __init__(self) -> None:
        self.allocated = 0
        self.peak = 0
        self.allocations = 0
        self.releases = 0

    def allocate(self, nbytes: int) -> None:
        self.allocated = live = self.allocated + nbytes
        self.allocations += 1
        if live > self.peak:
            self.peak = live
        recorder = active.recorder
        if recorder is not None:
            recorder.memory(memory_event(_clock(), nbytes, live, recorder.step))

    def reset_peak(self) -> None:
        self.peak = self.allocated


MEMORY = Memory()
