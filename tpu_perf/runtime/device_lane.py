"""How long the device was busy, from XLA's own profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tpu_perf.record.events import MODULE_LANE
from tpu_perf.runtime.device_trace import DeviceTrace


@dataclass(frozen=True, slots=True)
class DeviceBusy:
    """Nanoseconds in which at least one XLA op ran, and the part of them on the host's thread."""

    busy_ns: float
    inline_ns: float
    events: int


def profile_device(run: Callable[[], None]) -> DeviceBusy | None:
    """Run something under XLA's profiler; None if it reported no device work."""
    trace = DeviceTrace()
    trace.start()
    try:
        run()
    finally:
        events = trace.stop()
    # Programs, where XLA reports them, cover their instructions and what lies between.
    events = [event for event in events if event.lane == MODULE_LANE] or events
    if not events:
        return None
    spans = [(event.start_ns, event.end_ns) for event in events]
    inline = [(event.start_ns, event.end_ns) for event in events if event.inline]
    return DeviceBusy(covered(spans), covered(inline), len(events))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Total length of the union of (start, end) spans."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reach:
            total += end - max(start, reach)
            reach = end
    return total
