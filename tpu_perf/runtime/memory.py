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

    __slots__ = ("_forgotten", "allocated", "allocations", "out_of_memory", "peak", "releases")

    def __init__(self) -> None:
        self.allocated = 0
        self.peak = 0
        self.allocations = 0
        self.releases = 0
        #: How often a program did not find the memory it needs.
        self.out_of_memory = 0
        #: (allocations, releases) at the last reset of the accumulated counts.
        self._forgotten = (0, 0)

    def allocate(self, nbytes: int, buffer: int) -> None:
        """`buffer` identifies the buffer among the live ones."""
        self.allocated = live = self.allocated + nbytes
        self.allocations += 1
        if live > self.peak:
            self.peak = live
        recorder = active.recorder
        if recorder is not None:
            recorder.memory(memory_event(_clock(), nbytes, live, recorder.step, buffer))

    def release(self, nbytes: int, buffer: int) -> None:
        self.allocated = live = self.allocated - nbytes
        self.releases += 1
        recorder = active.recorder
        if recorder is not None:
            recorder.memory(memory_event(_clock(), -nbytes, live, recorder.step, buffer))

    def reset_peak(self) -> None:
        self.peak = self.allocated

    def reset_accumulated(self) -> None:
        self._forgotten = (self.allocations, self.releases)
        self.out_of_memory = 0

    def statistics(self) -> dict[str, int]:
        """Bytes and counts under the names that torch.cuda.memory_stats has for them. Nothing is
        cached: what is reserved is what is allocated."""
        stats = {
            "allocation.all.current": self.allocations - self.releases,
            "allocation.all.allocated": self.allocations - self._forgotten[0],
            "allocation.all.freed": self.releases - self._forgotten[1],
            "num_alloc_retries": 0,
            "num_ooms": self.out_of_memory,
        }
        for kind in ("allocated_bytes", "reserved_bytes", "active_bytes"):
            stats[f"{kind}.all.current"] = self.allocated
            stats[f"{kind}.all.peak"] = self.peak
        return stats


MEMORY = Memory()
