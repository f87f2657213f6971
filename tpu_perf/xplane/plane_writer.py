"""Builds one XPlane: interned names, typed stats, and lines of events given as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tpu_perf.xplane.event_encoding import Integers, StatColumn, StatType, encode_events
from tpu_perf.xplane.schema import XLine, XPlane, XStat

PS = 1000  # picoseconds in a nanosecond


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A stat value that readers look for under uint64 (ids)."""

    value: int


@dataclass(frozen=True, slots=True)
class Name:
    """A stat value stored as a reference to an interned string: cheap where it repeats."""

    text: str


StatValue = float | int | str | bytes | Unsigned | Name


@dataclass(frozen=True, slots=True, kw_only=True)
class EventColumns:
    """Events of one line: int64 arrays of one length; times in ns, `start_ns` since the start
    of the capture. `type_id` are ids that `PlaneWriter.event_type` gave."""

    type_id: Integers
    start_ns: Integers
    duration_ns: Integers
    stats: Sequence[StatColumn] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTotals:
    """What a line was to hold, compared with what a reader finds: the number of its events, and
    the sums of their durations and of their starts."""

    plane: str
    line: str
    events: int
    duration_ns: int
    start_sum_ns: int


@dataclass
class PlaneWriter:
    """Collects a plane; `to_bytes` serialises it. Ids start at 1: 0 means absent to readers."""

    name: str
    plane_id: int
    totals: list[LineTotals] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._plane = XPlane(id=self.plane_id, name=self.name)
        self._stat_ids: dict[str, int] = {}
        self._lines: list[bytes] = []
        self._next_event_type = 1

    def stat_id(self, name: str) -> int:
        """The id of a stat name, or of a string that stats refer to."""
        found = self._stat_ids.get(name)
        if found is None:
            found = self._stat_ids[name] = len(self._stat_ids) + 1
            metadata = self._plane.stat_metadata[found]
            metadata.id, metadata.name = found, name
        return found

    def add_stats(self, stats: Mapping[str, StatValue]) -> None:
        """Stats of the plane itself."""
        self._fill(self._plane.stats, stats)

    def event_type(
        self,
        name: str,
        *,
        display_name: str = "",
        stats: Mapping[str, StatValue] | None = None,
        type_id: int | None = None,
    ) -> int:
        """Add an event metadata entry and return its id: the next free one, or `type_id`."""
        chosen = self._next_event_type if type_id is None else type_id
        self._next_event_type = max(self._next_event_type, chosen + 1)
        metadata = self._plane.event_metadata[chosen]
        metadata.id, metadata.name, metadata.display_name = chosen, name, display_name
        self._fill(metadata.stats, stats or {})
        return chosen

    def column(
        self, name: str, type: StatType, values: Integers, present: Any = None
    ) -> StatColumn:
        """A stat of every event of a line."""
        return StatColumn(
            stat_id=self.stat_id(name),
            type=type,
            values=np.asarray(values, dtype=np.int64),
            present=present,
        )

    def ref_ids(self, texts: Iterable[str]) -> Integers:
        """Ids of strings, for a column of type "ref"."""
        return np.fromiter((self.stat_id(text) for text in texts), dtype=np.int64)

    def add_line(
        self, line_id: int, name: str, events: EventColumns, *, display_name: str = ""
    ) -> None:
        """Add a line; its events must be sorted by start, parents before children."""
        head = XLine(id=line_id, name=name, display_name=display_name).SerializeToString()
        body = encode_events(
            events.type_id, events.start_ns * PS, events.duration_ns * PS, events.stats
        )
        self._lines.append(head + body)
        self.totals.append(
            LineTotals(
                plane=self.name,
                line=name,
                events=len(events.type_id),
                duration_ns=int(events.duration_ns.sum()),
                start_sum_ns=int(events.start_ns.sum()),
            )
        )

    def to_bytes(self) -> bytes:
        """The plane as one field of an XSpace."""
        lines = b"".join(_delimited(0x1A, line) for line in self._lines)
        return _delimited(0x0A, self._plane.SerializeToString() + lines)

    def _fill(self, stats: Any, values: Mapping[str, StatValue]) -> None:
        for name, value in values.items():
            stats.append(self._stat(name, value))

    def _stat(self, name: str, value: StatValue) -> Any:
        identity = self.stat_id(name)
        if isinstance(value, Name):
            return XStat(metadata_id=identity, ref_value=self.stat_id(value.text))
        if isinstance(value, Unsigned):
            return XStat(metadata_id=identity, uint64_value=value.value)
        if isinstance(value, bytes):
            return XStat(metadata_id=identity, bytes_value=value)
        if isinstance(value, str):
            return XStat(metadata_id=identity, str_value=value)
        if isinstance(value, float):
            return XStat(metadata_id=identity, double_value=value)
        return XStat(metadata_id=identity, int64_value=value)


def _delimited(tag: int, data: bytes) -> bytes:
    size, out = len(data), bytearray([tag])
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + data
