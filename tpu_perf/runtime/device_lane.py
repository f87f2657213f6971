"""How long the device was busy, from XLA's own profiler."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax


@dataclass(frozen=True, slots=True)
class DeviceBusy:
    """Nanoseconds in which at least one XLA op ran, and the part of them on the host's thread."""

    busy_ns: float
    inline_ns: float
    events: int


def profile_device(run: Callable[[], None]) -> DeviceBusy | None:
    """Run something under XLA's profiler; None if it reported no device work."""
    with tempfile.TemporaryDirectory(prefix="tpu_perf_lanes_") as directory:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        options.host_tracer_level = 2
        jax.profiler.start_trace(directory, profiler_options=options)
        try:
            run()
        finally:
            jax.profiler.stop_trace()
        paths = sorted(Path(directory).rglob("*.xplane.pb"))
        if not paths:
            return None
        return _read(jax.profiler.ProfileData.from_file(str(paths[-1])))


def _read(data: Any) -> DeviceBusy | None:
    device: list[tuple[float, float]] = []
    inline: list[tuple[float, float]] = []
    for plane in data.planes:
        on_device = plane.name.startswith("/device:TPU")
        for line in plane.lines:
            if on_device and line.name != "XLA Modules":
                continue
            for event in line.events:
                if not on_device and not _is_xla_op(event):
                    continue
                span = (float(event.start_ns), float(event.start_ns + event.duration_ns))
                device.append(span)
                if line.name == "python":
                    inline.append(span)
    if not device:
        return None
    return DeviceBusy(covered(device), covered(inline), len(device))


def _is_xla_op(event: Any) -> bool:
    return any(name == "hlo_op" for name, _ in event.stats)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Total length of the union of (start, end) spans."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reach:
            total += end - max(start, reach)
            reach = end
    return total
