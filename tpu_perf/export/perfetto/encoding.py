"""Writes a timeline as Perfetto's protobuf, by hand: a million slices take seconds, not minutes.

Field numbers are those of Perfetto's perfetto_trace.proto (version 59.1). The file is read back
with the descriptors that Perfetto itself ships, see `reopening`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from tpu_perf.export.perfetto.nesting import place
from tpu_perf.export.perfetto.tracks import Body, Counter, Indices, Slices, Timeline, Track

# TracePacket
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 8, 10, 11, 12, 13, 60
# TrackEvent
_CATEGORY_IIDS, _ANNOTATIONS, _TYPE, _NAME_IID, _TRACK_UUID = 3, 4, 9, 10, 11
_COUNTER_VALUE, _DOUBLE_COUNTER_VALUE, _FLOW_IDS, _TERMINATING_FLOW_IDS = 30, 44, 47, 48
_SLICE_BEGIN, _SLICE_END, _COUNTER = 1, 2, 4
# InternedData
_CATEGORIES, _EVENT_NAMES, _ANNOTATION_NAMES, _STRING_VALUES = 1, 2, 3, 29
# DebugAnnotation
_ANNOTATION_NAME_IID, _INT_VALUE, _STRING_VALUE_IID = 1, 4, 17
# TrackDescriptor
_UUID, _NAME, _PROCESS, _PARENT, _COUNTER_DESCRIPTOR, _ORDERING, _RANK = 1, 2, 3, 5, 8, 11, 12
_PID, _PROCESS_NAME, _UNIT_NAME, _EXPLICIT = 1, 6, 6, 3

_STATE_CLEARED, _NEEDS_STATE = 1, 2
_INTERNED_AT_ONCE = 20_000
_PARTS_AT_ONCE = 400_000
#: Bytes of a padded varint: 56 bits, which is more than two years of nanoseconds.
_PADDED = 8

GROUPS = ("host", "dispatch", "device")
GROUP_NAMES = {"host": "host threads", "dispatch": "dispatch", "device": "device"}


def varint(value: int) -> bytes:
    """An unsigned number in base 128, least significant digits first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field_number: int, value: int) -> bytes:
    """An integer field; negative numbers are ten bytes of two's complement, as in int64."""
    return varint(field_number << 3) + varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def _bytes(field_number: int, value: bytes) -> bytes:
    return varint(field_number << 3 | 2) + varint(len(value)) + value


def _text(field_number: int, value: str) -> bytes:
    return _bytes(field_number, value.encode("utf-8", errors="replace"))


def _fixed64(field_number: int, value: int) -> bytes:
    return varint(field_number << 3 | 1) + value.to_bytes(8, "little")


def padded_varints(values: Indices) -> bytes:
    """Numbers of 0 to 2^56 - 1 as varints of eight bytes each, one after the other. Leading
    zeros are legal, and equal lengths let whole arrays be encoded at once."""
    shifts = np.arange(0, 7 * _PADDED, 7, dtype=np.int64)
    digits = ((values[:, None] >> shifts) & 0x7F).astype(np.uint8)
    digits[:, :-1] |= 0x80
    return digits.tobytes()


@dataclass(slots=True)
class _Interned:
    """Strings by number. A number is given once and never changes."""

    numbers: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers) + 1)

    def entries(self, field_number: int) -> list[bytes]:
        # EventCategory, EventName, DebugAnnotationName and InternedString are all (iid 1, text 2).
        return [
            _bytes(field_number, _number(1, number) + _text(2, text))
            for text, number in self.numbers.items()
        ]


@dataclass(slots=True)
class _Strings:
    categories: _Interned = field(default_factory=_Interned)
    names: _Interned = field(default_factory=_Interned)
    annotations: _Interned = field(default_factory=_Interned)
    values: _Interned = field(default_factory=_Interned)

    def encoded(self, body: Body) -> bytes:
        """The fields of a TrackEvent that depend on the body alone."""
        out = _number(_CATEGORY_IIDS, self.categories[body.category])
        out += _number(_NAME_IID, self.names[body.name])
        for name, value in body.args:
            content = _number(_ANNOTATION_NAME_IID, self.annotations[name])
            if isinstance(value, str):
                content += _number(_STRING_VALUE_IID, self.values[value])
            else:
                content += _number(_INT_VALUE, value)
            out += _bytes(_ANNOTATIONS, content)
        return out

    def entries(self) -> list[bytes]:
        return [
            *self.categories.entries(_CATEGORIES),
            *self.names.entries(_EVENT_NAMES),
            *self.annotations.entries(_ANNOTATION_NAMES),
            *self.values.entries(_STRING_VALUES),
        ]


def _packet(content: bytes, flags: int = _NEEDS_STATE) -> bytes:
    return _bytes(1, content + _number(_SEQUENCE, 1) + _number(_FLAGS, flags))


def _event_prefix(event: bytes, after: int = 0) -> bytes:
    """A packet with this TrackEvent but for its last bytes: a padded timestamp, at the end."""
    content = _bytes(_TRACK_EVENT, event) + _number(_SEQUENCE, 1) + _number(_FLAGS, _NEEDS_STATE)
    content += varint(_TIMESTAMP << 3)
    return varint(1 << 3 | 2) + varint(len(content) + _PADDED + after) + content


class _Sink:
    """Joins many small parts into large writes."""

    def __init__(self, file: BinaryIO) -> None:
        self.parts: list[bytes] = []
        self._file = file

    def drain(self, keep: int = 0) -> None:
        if len(self.parts) > keep:
            self._file.write(b"".join(self.parts))
            self.parts.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How many slices of a track lie on extra lanes, and on how many."""

    track: str
    slices: int
    lanes: int


def encode(timeline: Timeline, origin_ns: int, file: BinaryIO) -> list[Moved]:
    """Write the trace with times counted from `origin_ns`; says which slices would not nest."""
    sink, strings = _Sink(file), _Strings()
    bodies = [[strings.encoded(body) for body in track.slices.bodies] for track in timeline.tracks]
    _write_strings(sink, strings.entries())
    uuid = len(GROUPS)
    used = {track.group for track in timeline.tracks} | {"device"}
    for number, group in enumerate(GROUPS, start=1):
        if group in used:
            sink.parts.append(_process(number, GROUP_NAMES[group]))
    for rank, counter in enumerate(timeline.counters):
        uuid += 1
        unit = _bytes(_COUNTER_DESCRIPTOR, _text(_UNIT_NAME, counter.unit))
        sink.parts.append(_track(uuid, "device", counter.name, rank, unit))
        _write_counter(sink, counter, uuid, origin_ns)
    moved = []
    for rank, (track, encoded) in enumerate(
        zip(timeline.tracks, bodies, strict=True), start=len(timeline.counters)
    ):
        order, lanes = place(track.slices.start_ns, track.slices.end_ns)
        count = int(lanes.max(initial=0)) + 1
        for lane in range(count):
            uuid += 1
            name = track.name if lane == 0 else f"{track.name} (overlapping {lane})"
            sink.parts.append(_track(uuid, track.group, name, rank))
            chosen = order if count == 1 else order[lanes == lane]
            _write_slices(sink, track.slices, chosen, encoded, uuid, origin_ns)
        if count > 1:
            away = int((lanes > 0).sum())
            moved.append(Moved(track=track.name, slices=away, lanes=count - 1))
    sink.drain()
    return moved


def _write_strings(sink: _Sink, entries: Sequence[bytes]) -> None:
    flags = _STATE_CLEARED | _NEEDS_STATE
    for first in range(0, max(1, len(entries)), _INTERNED_AT_ONCE):
        content = _bytes(_INTERNED, b"".join(entries[first : first + _INTERNED_AT_ONCE]))
        sink.parts.append(_packet(content, flags))
        flags = _NEEDS_STATE


def _process(number: int, name: str) -> bytes:
    process = _bytes(_PROCESS, _number(_PID, number) + _text(_PROCESS_NAME, name))
    content = _number(_UUID, number) + process + _number(_ORDERING, _EXPLICIT)
    return _packet(_bytes(_DESCRIPTOR, content))


def _track(uuid: int, group: str, name: str, rank: int, more: bytes = b"") -> bytes:
    parent = GROUPS.index(group) + 1
    content = _number(_UUID, uuid) + _number(_PARENT, parent) + _text(_NAME, name)
    return _packet(_bytes(_DESCRIPTOR, content + _number(_RANK, rank) + more))


def _times(values: Indices, origin_ns: int) -> list[bytes]:
    encoded = padded_varints(values - origin_ns)
    return [encoded[at : at + _PADDED] for at in range(0, len(encoded), _PADDED)]


def _write_slices(
    sink: _Sink, slices: Slices, order: Indices, encoded: list[bytes], uuid: int, origin_ns: int
) -> None:
    """Begins and ends of slices that nest, each end right before the next begin after it."""
    on_track = _number(_TRACK_UUID, uuid)
    begin = _number(_TYPE, _SLICE_BEGIN) + on_track
    close = _event_prefix(_number(_TYPE, _SLICE_END) + on_track)
    prefixes: list[bytes | None] = [None] * len(encoded)
    starts, ends = slices.start_ns[order], slices.end_ns[order]
    start_times, end_times = _times(starts, origin_ns), _times(ends, origin_ns)
    starts_list, ends_list, bodies = starts.tolist(), ends.tolist(), slices.body[order].tolist()
    arrows = _arrows(slices, order)
    parts, stack = sink.parts, [0] * 0
    for number, (start, body) in enumerate(zip(starts_list, bodies, strict=True)):
        while stack and ends_list[stack[-1]] <= start:
            parts += (close, end_times[stack.pop()])
        prefix = prefixes[body]
        if prefix is None:
            prefix = prefixes[body] = _event_prefix(begin + encoded[body])
        if number in arrows:
            prefix = _event_prefix(begin + encoded[body] + arrows[number])
        parts += (prefix, start_times[number])
        stack.append(number)
        if len(parts) > _PARTS_AT_ONCE:
            sink.drain()
    while stack:
        parts += (close, end_times[stack.pop()])


def _arrows(slices: Slices, order: Indices) -> dict[int, bytes]:
    """By position in `order`: the flow fields of the slices at which an arrow begins or ends."""
    out: dict[int, bytes] = {}
    for flows, number in ((slices.flow_out, _FLOW_IDS), (slices.flow_in, _TERMINATING_FLOW_IDS)):
        if flows is not None:
            chosen = flows[order]
            for position in np.flatnonzero(chosen).tolist():
                arrow = _fixed64(number, int(chosen[position]))
                out[position] = out.get(position, b"") + arrow
    return out


def _write_counter(sink: _Sink, counter: Counter, uuid: int, origin_ns: int) -> None:
    event = _number(_TYPE, _COUNTER) + _number(_TRACK_UUID, uuid)
    for time, value in zip(_times(counter.t_ns, origin_ns), counter.values.tolist(), strict=True):
        if isinstance(value, float):
            shown = varint(_DOUBLE_COUNTER_VALUE << 3 | 1) + np.float64(value).tobytes()
        else:
            shown = _number(_COUNTER_VALUE, value)
        sink.parts.append(_event_prefix(event + shown) + time)
        if len(sink.parts) > _PARTS_AT_ONCE:
            sink.drain()


__all__ = ["Moved", "Track", "encode", "padded_varints", "varint"]
