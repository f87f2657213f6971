"""Encodes columns of events as the wire form of `repeated XEvent` with numpy, a million a second.

A message object per event would cost more time and memory than everything else in an export.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
StatType = Literal["uint64", "int64", "ref"]

#: Tag bytes: field number << 3 | wire type (0 varint, 2 length-delimited), as in `schema`.
_EVENTS_OF_LINE, _STATS_OF_EVENT = 0x22, 0x22
_METADATA_ID, _OFFSET_PS, _DURATION_PS = 0x08, 0x10, 0x18
_STAT_ID = 0x08
_STAT_VALUE: dict[StatType, int] = {"uint64": 0x18, "int64": 0x20, "ref": 0x38}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatColumn:
    """One stat of each event: int64 `values` >= 0, one an event, left out where `present` is
    False. For type "ref" the values are stat metadata ids."""

    stat_id: int
    type: StatType
    values: Integers
    present: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run of bytes of every event: constant bytes, then a varint (or none)."""

    prefix: bytes
    values: Integers | None
    present: npt.NDArray[np.bool_] | None = None


def varint_lengths(values: Integers) -> Integers:
    """Bytes that each non-negative value takes as a varint, 7 bits a byte."""
    lengths = np.ones(len(values), dtype=np.int64)
    for bits in range(7, 63, 7):
        lengths += values >= (1 << bits)
    return lengths


def encode_events(
    metadata_id: Integers,
    offset_ps: Integers,
    duration_ps: Integers,
    stats: Sequence[StatColumn] = (),
) -> bytes:
    """The bytes of an XLine's `events` field, one event an element, in the order given.

    All arrays are int64 of one length with values >= 0; offsets and durations in picoseconds.
    Raises ValueError for a negative value, which a varint cannot hold in this form.
    """
    for name, column in (("id", metadata_id), ("offset", offset_ps), ("duration", duration_ps)):
        if len(column) and column.min() < 0:
            raise ValueError(f"an event has a negative {name}")
    pieces = [
        _Piece(bytes([_METADATA_ID]), metadata_id),
        _Piece(bytes([_OFFSET_PS]), offset_ps),
        _Piece(bytes([_DURATION_PS]), duration_ps),
    ]
    for stat in stats:
        pieces += _stat_pieces(stat)
    sizes = [_sizes(piece, len(metadata_id)) for piece in pieces]
    bodies: Integers = np.asarray(np.sum(sizes, axis=0), dtype=np.int64)
    header = _Piece(bytes([_EVENTS_OF_LINE]), bodies)
    return _scatter([header, *pieces], [_sizes(header, len(bodies)), *sizes])


def _stat_pieces(stat: StatColumn) -> list[_Piece]:
    """Tag and length of the stat, its id, its value."""
    if (
        len(stat.values)
        and (stat.values if stat.present is None else stat.values[stat.present]).min(initial=0) < 0
    ):
        raise ValueError("a stat has a negative value")
    values = np.maximum(stat.values, 0)
    identity = _varint(stat.stat_id)
    length = 1 + len(identity) + 1 + varint_lengths(values)
    tail = bytes([_STAT_ID]) + identity + bytes([_STAT_VALUE[stat.type]])
    return [
        _Piece(bytes([_STATS_OF_EVENT]), length, stat.present),
        _Piece(tail, values, stat.present),
    ]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sizes(piece: _Piece, count: int) -> Integers:
    sizes = np.full(count, len(piece.prefix), dtype=np.int64)
    if piece.values is not None:
        sizes += varint_lengths(piece.values)
    return sizes if piece.present is None else np.where(piece.present, sizes, 0)


def _scatter(pieces: Sequence[_Piece], sizes: Sequence[Integers]) -> bytes:
    """Lay the pieces of every event one after the other into one buffer."""
    totals: Integers = np.asarray(np.sum(sizes, axis=0), dtype=np.int64)
    ends = np.cumsum(totals)
    position = ends - totals
    out = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    for piece, size in zip(pieces, sizes, strict=True):
        at, values = position, piece.values
        if piece.present is not None:
            at = at[piece.present]
            values = None if values is None else values[piece.present]
        for offset, byte in enumerate(piece.prefix):
            out[at + offset] = byte
        if values is not None:
            _put_varints(out, at + len(piece.prefix), values)
        position = position + size
    return out.tobytes()


def _put_varints(out: npt.NDArray[np.uint8], at: Integers, values: Integers) -> None:
    while len(values):
        more = values >= 0x80
        out[at] = (values & 0x7F) | (more * 0x80)
        at, values = at[more] + 1, values[more] >> 7
