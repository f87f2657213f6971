"""Streams and events of device "tpu": XLA keeps one order, the order of the data.

A stream is a name for that one order, kept so that code written for streams runs: what is
enqueued under any stream is visible to every other.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import torch

_ids = itertools.count()


def _synchronize() -> None:
    from tpu_perf.runtime.transfers import synchronize

    synchronize()


def _started() -> list[Any]:
    from tpu_perf.runtime.outstanding import OUTSTANDING
    from tpu_perf.runtime.segment import flush_all

    flush_all("synchronize()")
    return OUTSTANDING.unfinished()


class Stream(torch._C.Stream):
    """torch.Stream(device="tpu"), torch.tpu.Stream."""

    def __new__(cls, device: Any = None, priority: int = 0, **_: Any) -> Stream:
        return super().__new__(cls, device=torch.device("tpu", 0), priority=priority)

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self._number = next(_ids)
        self.priority = priority
        self._before: list[Stream] = []

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("tpu", 0)

    @property
    def device_index(self) -> int:  # type: ignore[override]
        return 0

    @property
    def stream_id(self) -> int:  # type: ignore[override]
        return self._number

    def synchronize(self) -> None:
        """Run what is deferred and wait until the device is idle."""
        _synchronize()

    def query(self) -> bool:
        """Whether all work is done; starts what is deferred."""
        return not _started()

    def wait_stream(self, stream: Any) -> None:
        """Nothing to do: one order."""

    def wait_event(self, event: Any) -> None:
        """Nothing to do: one order."""

    def record_event(self, event: Any = None) -> Any:
        event = event if event is not None else Event()
        event.record(self)
        return event

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> Stream:
        self._before.append(current())
        set_current(self)
        return self

    def __exit__(self, *exc: object) -> None:
        set_current(self._before.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other._number == self._number

    def __ne__(self, other: object) -> bool:  # torch's own would compare its numbers
        return not self == other

    def __hash__(self) -> int:
        return self._number

    def __repr__(self) -> str:
        return f"torch.tpu.Stream(device=tpu:0, stream_id={self._number})"


class Event(torch._C.Event):
    """torch.Event(device="tpu"), torch.tpu.Event: a point in the device's work.

    With timing on, `record` waits for the device, because XLA does not time-stamp programs;
    elapsed_time is then host time between finished points. Without, `record` does not wait.
    """

    def __new__(cls, *_: Any, **__: Any) -> Event:
        return super().__new__(cls, torch.device("tpu", 0))

    def __init__(
        self, device: Any = None, enable_timing: bool = False, blocking: bool = False, **_: Any
    ) -> None:
        # torch.tpu.Event(True) has timing on, as torch.cuda.Event(True) has.
        self.enable_timing = enable_timing or device is True
        self.blocking = blocking
        self._time_ns: int | None = None
        self._started: list[Any] = []

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("tpu", 0)

    def record(self, stream: Any = None) -> None:
        if self.enable_timing:
            _synchronize()
        else:
            self._started = _started()
        self._time_ns = time.perf_counter_ns()

    def synchronize(self) -> None:
        """Wait until the work started before `record` is done."""
        for array in self._started:
            if array.is_deleted():  # its memory went into a later program: wait for that too
                _synchronize()
                break
            array.block_until_ready()
        self._started = []

    def wait(self, stream: Any = None) -> None:
        """Nothing to do: one order."""

    def query(self) -> bool:
        """Whether the work started before `record` is done."""
        if any(array.is_deleted() for array in self._started):
            self._started = _started()
        self._started = [a for a in self._started if not a.is_deleted() and not a.is_ready()]
        return not self._started

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to `end`; both need enable_timing and a record."""
        if not (self.enable_timing and end.enable_timing):
            raise RuntimeError(
                "both events must be made with enable_timing=True before they are recorded"
            )
        if self._time_ns is None or end._time_ns is None:
            raise RuntimeError("both events must be recorded before elapsed_time")
        return float(end._time_ns - self._time_ns) / 1e6

    def __repr__(self) -> str:
        return f"torch.tpu.Event(enable_timing={self.enable_timing})"


class _PerThread(threading.local):
    current: Stream | None = None


_threads = _PerThread()
_default: Stream | None = None


def default() -> Stream:
    """The stream that is current where none was set."""
    global _default
    if _default is None:
        _default = Stream()
    return _default


def current() -> Stream:
    """This thread's current stream."""
    return _threads.current or default()


def set_current(stream: Any) -> None:
    """Make a stream this thread's current one. Raises TypeError for one of another device."""
    if stream is None:
        return
    if not isinstance(stream, Stream):
        raise TypeError(f"expected a stream of device tpu, not {stream!r}")
    _threads.current = stream
