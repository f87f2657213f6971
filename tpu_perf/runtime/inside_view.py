"""Watching the device closely for a few steps: its instructions, and tables of what they are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpu_perf.record.details import BUFFER_LABEL_COLUMNS
from tpu_perf.record.store import table_of_rows
from tpu_perf.runtime.buffer_labels import label_buffers
from tpu_perf.runtime.device_trace import KEY_DIGITS, DeviceEvent, DeviceTrace
from tpu_perf.runtime.program_cache import CACHE
from tpu_perf.runtime.program_details import detail_tables

if TYPE_CHECKING:
    import pyarrow as pa

    from tpu_perf.recorder import Recorder
    from tpu_perf.recorder.sites import Sites

#: Index of a step, and its start and end in ns of time.perf_counter_ns.
Span = tuple[int, int, int]


@contextmanager
def record_device(recorder: Recorder) -> Iterator[list[Span]]:
    """Watch the device inside the block; its events go to the recorder. The block fills the list
    with the steps that it ran, so that each event gets its step."""
    spans: list[Span] = []
    trace = DeviceTrace()
    trace.start()
    try:
        yield spans
    finally:
        add_device_events(recorder, trace.stop(), spans)


def add_device_events(
    recorder: Recorder, events: Sequence[DeviceEvent], spans: Sequence[Span]
) -> None:
    """Hand what ran on the device to the recorder, each event with the step it began in."""
    numbers = {program.key[:KEY_DIGITS]: program.index for program in CACHE.programs}
    steps = sorted(spans, key=lambda span: span[1])
    starts = [span[1] for span in steps]
    for event in events:
        at = bisect_right(starts, event.start_ns) - 1
        step = steps[at][0] if at >= 0 and event.start_ns <= steps[at][2] else -1
        recorder.device((event.start_ns, event.end_ns, numbers.get(event.key, -1),
                         event.instruction, event.lane, step))  # fmt: skip


def tables_of_process(sites: Sites) -> Mapping[str, pa.Table]:
    """The tables of record.details for everything that this process has compiled, and for what it
    holds at the moment."""
    return {**program_details(sites), "buffer_labels": labels_of_process()}


def program_details(sites: Sites) -> Mapping[str, pa.Table]:
    """Sites, and the ops and instructions of every program of this process."""
    return detail_tables(CACHE.programs, sites)


def labels_of_process() -> pa.Table:
    """What the live buffers are."""
    return table_of_rows(BUFFER_LABEL_COLUMNS, label_buffers())
