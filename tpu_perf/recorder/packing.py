"""The three commonest events as bytes instead of tuples.

Python's garbage collector tracks every tuple and walks the new ones: with hundreds of events a
step that cost as much as the events themselves, and ran the collector inside timed steps (measured
in Strict: 24 collections where the step alone causes one). Bytes are not tracked.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tpu_perf.record.events import DISPATCH, EXECUTE, MEMORY, EventKind
from tpu_perf.record.store import arrow_schema

PACKED_KINDS = {kind.name for kind in (DISPATCH, EXECUTE, MEMORY)}


#: Columns that only a recorder with details fills: it appends them to the packed row.
_DETAILS = {DISPATCH.name: ("site", "thread"), EXECUTE.name: (), MEMORY.name: ("site",)}


def _pack(kind: EventKind) -> Any:
    return struct.Struct("q" * (len(kind.columns) - len(_DETAILS[kind.name]))).pack


#: t_start_ns, t_end_ns, number of the op's name, program, step
dispatch_event = _pack(DISPATCH)
#: t_start_ns, t_end_ns, program, tier, step
execute_event = _pack(EXECUTE)
#: t_ns, delta_bytes, live_bytes, step, buffer
memory_event = _pack(MEMORY)

#: A Strict op, which is a dispatch and the execution inside it: the dispatch's start, the
#: execution's start and end, the dispatch's end, number of the op's name, program, tier, step
op_event = struct.Struct("8q").pack
_OF_DISPATCH, _OF_EXECUTE = [0, 3, 4, 5, 7, 8, 9], [1, 2, 5, 6, 7]
_OP_WORDS = 8

#: What a recorder with details appends to a dispatch (or op) and to a memory event.
site_and_thread = struct.Struct("2q").pack
site_only = struct.Struct("q").pack

KINDS_OF_AN_OP = {DISPATCH.name, EXECUTE.name}

_numbers: dict[str, int] = {}
_names: list[str] = []


def name_number(name: str) -> int:
    """The number that stands for a string in packed events of this process."""
    number = _numbers.get(name)
    if number is None:
        number = _numbers[name] = len(_names)
        _names.append(name)
    return number


def table_of_packed(kind: EventKind, rows: Sequence[bytes]) -> pa.Table:
    """Packed events of one kind as a table; all rows with details, or none."""
    columns = len(kind.columns)
    if not rows:
        return _table_of_values(kind, np.empty((0, columns), np.int64))
    values = np.frombuffer(b"".join(rows), np.int64).reshape(len(rows), -1)
    return _table_of_values(kind, _padded(values, columns))


def tables_of_ops(rows: Sequence[bytes]) -> dict[str, pa.Table]:
    """Packed Strict ops as a dispatch table and an execute table of as many rows."""
    values = np.frombuffer(b"".join(rows), np.int64).reshape(len(rows), -1)
    values = _padded(values, _OP_WORDS + len(_DETAILS[DISPATCH.name]))
    return {
        DISPATCH.name: _table_of_values(DISPATCH, values[:, _OF_DISPATCH]),
        EXECUTE.name: _table_of_values(EXECUTE, values[:, _OF_EXECUTE]),
    }


def _padded(values: np.ndarray[Any, Any], columns: int) -> np.ndarray[Any, Any]:
    """The rows with -1 in the columns that they lack."""
    missing = columns - values.shape[1]
    if not missing:
        return values
    return np.concatenate([values, np.full((len(values), missing), -1, np.int64)], axis=1)


def _table_of_values(kind: EventKind, values: np.ndarray[Any, Any]) -> pa.Table:
    schema = arrow_schema(kind.columns)
    arrays = []
    for i, (field, (_, column_type)) in enumerate(zip(schema, kind.columns, strict=True)):
        column = values[:, i]
        if column_type == "string":
            used, positions = np.unique(column, return_inverse=True)
            texts = pa.array([_names[n] for n in used], pa.string())
            arrays.append(pa.DictionaryArray.from_arrays(positions.astype(np.int32), texts))
        else:
            arrays.append(pa.array(column).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
