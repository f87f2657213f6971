"""Reads a Perfetto trace back with Perfetto's own schema, and applies its rules strictly.

Perfetto's trace processor is a program that its Python package downloads when first used, so it
cannot be asked on a machine without network. This reader takes the message descriptors that the
package does ship, and applies the rules of the track event format itself: every packet on a
sequence whose state was cleared, every interned number defined before its use, every slice on a
track that was described, begins and ends that nest with times that never go back.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_perf.errors import EnvironmentProblem, ExportMismatch

_CHUNK = 1 << 20
_PACKET_TAG = 0x0A
_BEGIN, _END, _COUNTER = 1, 2, 4


@dataclass(slots=True)
class Totals:
    """Slices of one category: how many, and the sum of their durations in ns."""

    count: int = 0
    total_ns: int = 0


@dataclass(slots=True)
class CounterTotals:
    count: int = 0
    last: float = 0.0
    maximum: float = float("-inf")


@dataclass(slots=True)
class Reopened:
    """What a trace holds. Categories are those of the slices; counters by the track's name."""

    categories: dict[str, Totals] = field(default_factory=dict)
    counters: dict[str, CounterTotals] = field(default_factory=dict)
    slices_by_track: dict[str, int] = field(default_factory=dict)
    flows: int = 0
    first_ns: int | None = None
    last_ns: int = 0


def chunks(data: mmap.mmap | bytes, size: int = _CHUNK) -> Iterator[bytes]:
    """The file in pieces of whole packets. A Trace is nothing but packets, so each is a Trace."""
    at, begin, length = 0, 0, len(data)
    while at < length:
        if data[at] != _PACKET_TAG:
            raise ExportMismatch(f"byte {at} begins no packet")
        at += 1
        count = shift = 0
        while True:
            if at >= length:
                raise ExportMismatch("the last packet is cut off")
            byte = data[at]
            at += 1
            count |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        at += count
        if at > length:
            raise ExportMismatch("the last packet is cut off")
        if at - begin >= size:
            yield data[begin:at]
            begin = at
    if begin < length:
        yield data[begin:length]


def reopen(path: Path) -> Reopened:
    """Read a whole trace. Raises ExportMismatch at the first thing that is not as it must be,
    EnvironmentProblem where the package `perfetto` is missing."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema
    except ImportError as error:
        raise EnvironmentProblem(
            f"the trace cannot be checked: {error}",
            hint="install the package `perfetto`, whose schema reads the file back",
        ) from None
    from google.protobuf.message import DecodeError

    reader = _Reader()
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise ExportMismatch(f"{path.name} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for piece in chunks(data):
                try:
                    trace = schema.Trace.FromString(piece)
                except DecodeError as error:
                    raise ExportMismatch(f"{path.name}: a packet is malformed: {error}") from None
                for packet in trace.packet:
                    reader.read(packet)
    return reader.result()


class _Reader:
    """State of the one packet sequence that is read."""

    def __init__(self) -> None:
        self.found = Reopened()
        self._categories: dict[int, str] = {}
        self._names: set[int] = set()
        self._annotations: set[int] = set()
        self._values: set[int] = set()
        self._tracks: dict[int, str] = {}
        self._counters: dict[int, CounterTotals] = {}
        self._open: dict[int, list[tuple[int, Totals]]] = {}
        self._times: dict[int, int] = {}
        self._slices: dict[int, int] = {}
        self._leaving: set[int] = set()
        self._arriving: set[int] = set()
        self._sequence = 0

    def read(self, packet: Any) -> None:
        if packet.trusted_packet_sequence_id != self._sequence:
            if self._sequence or not packet.sequence_flags & 1:
                raise ExportMismatch("a packet is of a sequence whose state was not cleared")
            self._sequence = packet.trusted_packet_sequence_id
        if packet.HasField("track_event"):
            self._event(packet.track_event, packet.timestamp)
        elif packet.HasField("track_descriptor"):
            self._describe(packet.track_descriptor)
        if packet.HasField("interned_data"):
            self._intern(packet.interned_data)

    def _intern(self, data: Any) -> None:
        self._categories.update((entry.iid, entry.name) for entry in data.event_categories)
        self._names.update(entry.iid for entry in data.event_names)
        self._annotations.update(entry.iid for entry in data.debug_annotation_names)
        self._values.update(entry.iid for entry in data.debug_annotation_string_values)

    def _describe(self, track: Any) -> None:
        if not track.uuid or track.uuid in self._tracks:
            raise ExportMismatch(f"track {track.uuid} is described twice or has no number")
        if track.HasField("parent_uuid") and track.parent_uuid not in self._tracks:
            raise ExportMismatch(f"track {track.name!r} lies below one that is not there")
        self._tracks[track.uuid] = track.name or track.process.process_name
        if track.HasField("counter"):
            totals = self.found.counters.setdefault(track.name, CounterTotals())
            self._counters[track.uuid] = totals

    def _event(self, event: Any, time: int) -> None:
        track, kind = event.track_uuid, event.type
        if track not in self._tracks:
            raise ExportMismatch(f"an event lies on track {track}, which is not described")
        if time < self._times.get(track, 0):
            raise ExportMismatch(
                f"track {self._tracks[track]!r}: time goes back from {self._times[track]} to {time}"
            )
        self._times[track] = time
        if self.found.first_ns is None or time < self.found.first_ns:
            self.found.first_ns = time
        if kind == _END:
            stack = self._open.get(track)
            if not stack:
                raise ExportMismatch(f"track {self._tracks[track]!r}: an end without a begin")
            start, totals = stack.pop()
            totals.count += 1
            totals.total_ns += time - start
        elif kind == _BEGIN:
            self._begin(event, track, time)
        elif kind == _COUNTER and track in self._counters:
            counter = self._counters[track]
            counter.count += 1
            has_float = event.HasField("double_counter_value")
            counter.last = event.double_counter_value if has_float else event.counter_value
            counter.maximum = max(counter.maximum, counter.last)
        else:
            raise ExportMismatch(f"track {self._tracks[track]!r}: an event of type {kind}")

    def _begin(self, event: Any, track: int, time: int) -> None:
        if event.name_iid not in self._names:
            raise ExportMismatch(f"a slice on {self._tracks[track]!r} has a name that is not there")
        for shown in event.debug_annotations:
            text = shown.string_value_iid
            if shown.name_iid not in self._annotations or (text and text not in self._values):
                raise ExportMismatch("an argument's name or text is not there")
        (category,) = event.category_iids
        totals = self.found.categories.setdefault(self._categories[category], Totals())
        self._open.setdefault(track, []).append((time, totals))
        self._slices[track] = self._slices.get(track, 0) + 1
        if flows := event.flow_ids:
            self._leaving.update(flows)
        if flows := event.terminating_flow_ids:
            self._arriving.update(flows)

    def result(self) -> Reopened:
        for track, stack in self._open.items():
            if stack:
                raise ExportMismatch(
                    f"track {self._tracks[track]!r}: {len(stack)} slices not ended"
                )
        if self._leaving != self._arriving:
            raise ExportMismatch("an arrow has only one end")
        self.found.flows = len(self._leaving)
        self.found.last_ns = max(self._times.values(), default=0)
        for track, count in self._slices.items():
            name = self._tracks[track]
            self.found.slices_by_track[name] = self.found.slices_by_track.get(name, 0) + count
        return self.found
