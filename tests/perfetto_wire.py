"""Reads Perfetto traces byte by byte, knowing only protobuf's wire format and field numbers.

It shares no code with what writes or checks them in tpu_perf, nor Perfetto's descriptors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 128:
            return value, at


def message(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message in order: (number, integer or bytes). Anything else raises."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 1:
            yield number, data[at : at + 8]
            at += 8
        elif wire == 2:
            length, at = _varint(data, at)
            assert at + length <= len(data)
            yield number, data[at : at + length]
            at += length
        else:
            raise AssertionError(f"wire type {wire}")


def _fields(data: bytes) -> dict[int, list[Any]]:
    out: dict[int, list[Any]] = {}
    for number, value in message(data):
        out.setdefault(number, []).append(value)
    return out


@dataclass
class Slice:
    track: str
    group: str
    category: str
    name: str
    start: int
    end: int
    depth: int
    parents: tuple[str, ...]
    args: dict[str, str | int]
    leaving: list[int] = field(default_factory=list)
    arriving: list[int] = field(default_factory=list)


@dataclass
class Trace:
    slices: list[Slice] = field(default_factory=list)
    counters: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    tracks: dict[int, tuple[str, int]] = field(default_factory=dict)

    def named(self, category: str, name: str | None = None) -> list[Slice]:
        found = [s for s in self.slices if s.category == category and name in (None, s.name)]
        return sorted(found, key=lambda s: (s.start, s.depth))


def read(path: Path) -> Trace:
    """The whole trace. Slices that do not nest, unknown names and tracks raise AssertionError."""
    trace = Trace()
    interned: dict[int, dict[int, str]] = {1: {}, 2: {}, 3: {}, 29: {}}
    opened: dict[int, list[Slice]] = {}
    last: dict[int, int] = {}
    for number, data in message(path.read_bytes()):
        assert number == 1
        packet = _fields(data)
        assert packet[10] == [1]
        for interned_data in packet.get(12, []):
            for kind, entry in message(interned_data):
                texts = _fields(entry)
                interned[kind][texts[1][0]] = texts[2][0].decode()
        for descriptor in packet.get(60, []):
            track = _fields(descriptor)
            process = _fields(track[3][0])[6][0] if 3 in track else None
            named = track[2][0] if 2 in track else process
            assert named is not None
            name = named.decode()
            parent = track.get(5, [0])[0]
            assert parent == 0 or parent in trace.tracks
            trace.tracks[track[1][0]] = (name, parent)
            if 8 in track:
                trace.counters[name] = []
        for encoded in packet.get(11, []):
            event, (time,) = _fields(encoded), packet[8]
            (uuid,) = event[11]
            track_name, parent = trace.tracks[uuid]
            assert time >= last.get(uuid, 0)
            last[uuid] = time
            stack = opened.setdefault(uuid, [])
            if event[9] == [1]:
                made = Slice(
                    track=track_name,
                    group=trace.tracks[parent][0],
                    category=interned[1][event[3][0]],
                    name=interned[2][event[10][0]],
                    start=time,
                    end=-1,
                    depth=len(stack),
                    parents=tuple(outer.name for outer in stack),
                    args=dict(_argument(interned, arg) for arg in event.get(4, [])),
                    leaving=[int.from_bytes(f, "little") for f in event.get(47, [])],
                    arriving=[int.from_bytes(f, "little") for f in event.get(48, [])],
                )
                stack.append(made)
                trace.slices.append(made)
            elif event[9] == [2]:
                stack.pop().end = time
            else:
                assert event[9] == [4]
                value = struct.unpack("<d", event[44][0])[0] if 44 in event else event[30][0]
                trace.counters[track_name].append((time, value))
    assert not any(opened.values())
    return trace


def _argument(interned: dict[int, dict[int, str]], data: bytes) -> tuple[str, str | int]:
    argument = _fields(data)
    name = interned[3][argument[1][0]]
    return name, interned[29][argument[17][0]] if 17 in argument else argument[4][0]
