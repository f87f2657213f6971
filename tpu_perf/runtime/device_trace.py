"""What ran on the device and when, from XLA's own profiler, on the recorder's clock."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from tpu_perf.record.events import DEVICE_LANE, MODULE_LANE

#: The event by which XLA's clock is set against ours.
_CLOCK_MARK = "tpu_perf.clock"
_MODULES_LINE, _OPS_LINE = "XLA Modules", "XLA Ops"
#: The line of the host's plane on which the thread that calls XLA from Python is.
_CALLING_THREAD = "python"
KEY_DIGITS = 10


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """An HLO instruction (or, in lane `module`, a program) that ran. Times are nanoseconds of
    `time.perf_counter_ns`; `key` the first ten digits of its program's key, "" where the program
    is not one of ours; `inline` whether it ran on the thread that called XLA."""

    start_ns: int
    end_ns: int
    key: str
    instruction: str
    lane: str
    inline: bool


class DeviceTrace:
    """One session of XLA's profiler; only one can be under way in a process."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="tpu_perf_trace_")
        self._mark_ns = 0

    def start(self) -> None:
        """Raises RuntimeError if the program is profiling itself at the moment."""
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        options.host_tracer_level = 2
        try:
            jax.profiler.start_trace(self._directory, profiler_options=options)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        with jax.profiler.TraceAnnotation(_CLOCK_MARK):
            pass  # the first annotation of a session pays for what later ones do not
        begin = time.perf_counter_ns()
        with jax.profiler.TraceAnnotation(_CLOCK_MARK):
            self._mark_ns = (begin + time.perf_counter_ns()) // 2

    def stop(self) -> list[DeviceEvent]:
        """End the session; what ran on the device, sorted by start."""
        try:
            jax.profiler.stop_trace()
            paths = sorted(Path(self._directory).rglob("*.xplane.pb"))
            data = jax.profiler.ProfileData.from_file(str(paths[-1])) if paths else None
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
        return [] if data is None else _read(data, self._mark_ns)


def _read(data: Any, mark_ns: int) -> list[DeviceEvent]:
    found: list[tuple[float, float, str, str, str, bool]] = []
    mark: float | None = None
    devices: dict[int, int] = {}
    for plane in data.planes:
        if plane.name.startswith("/device:TPU"):
            found += _of_device(plane)
            continue
        for number, line in enumerate(plane.lines):
            for event in line.events:
                if event.name == _CLOCK_MARK:
                    mark = max(mark or 0.0, event.start_ns)
                    continue
                stats = dict(event.stats)
                if "hlo_op" not in stats:
                    continue
                lane = "host" if line.name == _CALLING_THREAD else f"thread {number}"
                device = stats.get("device_ordinal")
                if device is not None:
                    devices[len(found)] = int(device)
                found.append(
                    (event.start_ns, event.duration_ns, _key_of(str(stats.get("hlo_module", ""))),
                     str(stats["hlo_op"]), lane, line.name == _CALLING_THREAD)
                )  # fmt: skip
    if mark is None:  # a session without its own mark cannot be placed in time
        return []
    if len(set(devices.values())) > 1:  # threads of a CPU serve whichever device has work
        for at, device in devices.items():
            found[at] = (*found[at][:4], f"{DEVICE_LANE}{device}", found[at][5])
    shift = mark_ns - mark
    events = [
        DeviceEvent(round(start + shift), round(start + length + shift), key, name, lane, inline)
        for start, length, key, name, lane, inline in found
    ]
    return sorted(events, key=lambda event: event.start_ns)


def _of_device(plane: Any) -> Iterator[tuple[float, float, str, str, str, bool]]:
    """Programs and instructions of a TPU core, whose instructions do not name their program."""
    lines = {line.name: line for line in plane.lines}
    core = plane.name.removeprefix("/device:")
    modules = [
        (event.start_ns, event.start_ns + event.duration_ns, event.name)
        for event in (lines[_MODULES_LINE].events if _MODULES_LINE in lines else ())
    ]
    for start, end, name in modules:
        yield start, end - start, _key_of(name), name, MODULE_LANE, False
    at = 0
    for event in lines[_OPS_LINE].events if _OPS_LINE in lines else ():
        while at + 1 < len(modules) and modules[at + 1][0] <= event.start_ns:
            at += 1
        inside = modules and modules[at][0] <= event.start_ns < modules[at][1]
        key = _key_of(modules[at][2]) if inside else ""
        name = event.name.split(" = ", 1)[0].removeprefix("%")
        yield event.start_ns, event.duration_ns, key, name, core, False


def _key_of(module: str) -> str:
    """The digits of the program's key that end a module's name (`program_cache.xla_name`)."""
    name = module.split("(", 1)[0]
    digits = name.rpartition("__")[2]
    known = len(digits) == KEY_DIGITS and all(c in "0123456789abcdef" for c in digits)
    return digits if known else ""
