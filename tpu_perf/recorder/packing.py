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


def _pack(kind: EventKind) -> Any:
    return struct.Struct("q" * len(kind.columns)).pack


#: t_start_ns, t_end_ns, number of the op's name, program, step
dispatch_event = _pack(DISPATCH)
#: t_start_ns, t_end_ns, program, tier, step
execute_event = _pack(EXECUTE)
#: t_ns, delta_bytes, live_bytes, step
memory_event = _pack(MEMORY)

#: A Strict op, which is a dispatch and the execution inside it: the dispatch's start, the
#: execution's start and end, the dispatch's end, number of the op's name, program, tier, step
op_event = struct.Struct("8q").pack
_OF_DISPATCH, _OF_EXECUTE = [0, 3, 4, 5, 7], [1, 2, 5, 6, 7]

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
    """Packed events of one kind as a table."""
    return _table_of_values(
        kind, np.frombuffer(b"".join(rows), np.int64).reshape(-1, len(kind.columns))
    )


def tables_of_ops(rows: Sequence[bytes]) -> dict[str, pa.Table]:
    """Packed Strict ops as a dispatch table and an execute table of as many rows."""
    values = np.frombuffer(b"".join(rows), np.int64).reshape(-1, 8)
    return {
        DISPATCH.name: _table_of_values(DISPATCH, values[:, _OF_DISPATCH]),
        EXECUTE.name: _table_of_values(EXECUTE, values[:, _OF_EXECUTE]),
    }


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
