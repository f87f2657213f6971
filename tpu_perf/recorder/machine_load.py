"""How much of the machine's CPU time other processes took while something was being timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


class OtherLoad:
    """Adds up CPU seconds over the blocks it watches.

    Steps that shared the machine are no sample of the code alone, and no statistics over them can
    tell: a job next door that runs for as long as the ladder slows every round alike.
    """

    def __init__(self) -> None:
        self._available = 0.0
        self._others = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what happens inside the block. The system's clock ticks every 10 ms, so that
        single short blocks mean little and their sum does."""
        busy, own, wall = _busy_s(), time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            self._others += (_busy_s() - busy) - (time.process_time() - own)
            self._available += (time.perf_counter() - wall) * (psutil.cpu_count() or 1)

    @property
    def share(self) -> float | None:
        """The others' part of all cores' time, 0 to 1; None before anything was watched, and where
        it was too short for the system's clock."""
        if self._available < 0.1:
            return None
        return min(1.0, max(0.0, self._others / self._available))


def _busy_s() -> float:
    """CPU seconds of all cores and processes until now, those stolen by a hypervisor included."""
    times = psutil.cpu_times()
    return float(times.user + times.system + sum(getattr(times, n, 0.0) for n in _MORE))


_MORE = ("nice", "irq", "softirq", "steal")
