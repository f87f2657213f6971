"""Event metadata of device ops: HLO text, category, FLOPs, bytes, origin, as XProf reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tpu_perf.export.xplane.capture import Capture
from tpu_perf.export.xplane.op_names import OpNames, Origin
from tpu_perf.xplane.event_encoding import Integers
from tpu_perf.xplane.plane_writer import Name, PlaneWriter, StatValue, Unsigned
from tpu_perf.xplane.schema import HBM, READ, WRITE, MemoryAccessBreakdown

#: Category of a span that is a whole program, because nothing finer was seen.
PROGRAM_CATEGORY = "whole program"
UNKNOWN_CATEGORY = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpType:
    """What is known of one instruction (or program): cost of one execution, None unknown."""

    name: str
    text: str
    category: str
    flops: float | None
    bytes_read: float | None
    bytes_written: float | None
    bytes_accessed: float | None
    shape: str
    origin: Origin
    ops: str


def program_id(program: int) -> int:
    """XProf's id of a program: it takes 0 for none, so ours are one higher."""
    return program + 1 if program >= 0 else UNKNOWN_PROGRAM_ID


UNKNOWN_PROGRAM_ID = 2**31 - 1


class OpTypes:
    """Finds the type of a span: (program, instruction), "" for a whole program."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._names = OpNames(capture)
        table = capture.detail("instructions")
        table = table.drop_duplicates(["program", "instruction"])
        rows: list[Any] = list(table.itertuples())
        self._instructions = {(int(row.program), str(row.instruction)): row for row in rows}

    @property
    def names(self) -> OpNames:
        return self._names

    def find(self, program: int, instruction: str) -> OpType:
        if not instruction:
            return self._program(program)
        row = self._instructions.get((program, instruction))
        if row is None:
            return _bare(instruction)
        origin, ops = self._names.of_instruction(program, row.positions)
        read, written = _known(row.bytes_read), _known(row.bytes_written)
        return OpType(
            name=instruction,
            text=_string(row.text) or f"%{instruction} = {_string(row.shape)} {row.opcode}()",
            category=_string(row.category) or UNKNOWN_CATEGORY,
            flops=_known(row.flops),
            bytes_read=read,
            bytes_written=written,
            bytes_accessed=None if read is None or written is None else read + written,
            shape=_string(row.shape),
            origin=origin,
            ops=ops,
        )

    def _program(self, program: int) -> OpType:
        programs = self._capture.tables.programs
        name = self._capture.program_names.get(program, "unknown program")
        row: Any = programs.loc[program] if program in programs.index else {}
        origin, ops = self._names.of_program(program)
        return OpType(
            name=name,
            text=f"%{name} = whole program, timed by the call that enqueued it",
            category=PROGRAM_CATEGORY,
            flops=_known(row.get("flops")),
            bytes_read=None,
            bytes_written=None,
            bytes_accessed=_known(row.get("bytes_accessed")),
            shape="",
            origin=origin,
            ops=ops,
        )


def _bare(instruction: str) -> OpType:
    return OpType(
        name=instruction,
        text=f"%{instruction}",
        category=UNKNOWN_CATEGORY,
        flops=None,
        bytes_read=None,
        bytes_written=None,
        bytes_accessed=None,
        shape="",
        origin=Origin(),
        ops="",
    )


def _known(value: object) -> float | None:
    """A count, or None for null, NaN and the -1 that XLA gives for "no idea"."""
    if value is None or pd.isna(value) or float(value) < 0:  # type: ignore[call-overload, arg-type]
        return None
    return float(value)  # type: ignore[arg-type]


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class TypedOps:
    """Type ids of spans, in their order, with what they cost together where it is known."""

    type_id: Integers
    flops: int
    bytes_accessed: int
    without_flops: int  # spans whose FLOPs are not known


def type_ops(
    plane: PlaneWriter, types: OpTypes, spans: pd.DataFrame, known: dict[tuple[int, str], int]
) -> TypedOps:
    """Add the spans' types to the plane; `known` carries ids from one line of it to the next."""
    keys = pd.MultiIndex.from_arrays([spans["program"], spans["instruction"]])
    codes, unique = pd.factorize(keys)
    counts = np.bincount(codes, minlength=len(unique)) if len(unique) else np.zeros(0, dtype=int)
    ids, flops, accessed, without = [], 0, 0, 0
    for (program, instruction), count in zip(unique, counts.tolist(), strict=True):
        key = (int(program), str(instruction))
        op = types.find(*key)
        if key not in known:
            known[key] = _add(plane, op, key[0], symbol=len(known) + 1)
        ids.append(known[key])
        flops += count * round(op.flops or 0)
        accessed += count * round(op.bytes_accessed or 0)
        without += count if op.flops is None else 0
    id_of = np.array(ids, dtype=np.int64)
    return TypedOps(id_of[codes] if len(ids) else id_of, flops, accessed, without)


def _add(plane: PlaneWriter, op: OpType, program: int, symbol: int) -> int:
    stats: dict[str, StatValue] = {
        "program_id": Unsigned(program_id(program)),
        "symbol_id": Unsigned(symbol),
        "hlo_category": Name(op.category),
    }
    optional = {
        "tf_op": op.origin.tf_op,
        "source": op.origin.source,
        "source_stack": op.origin.stack,
        "shape_with_layout": op.shape,
        "ops": op.ops,
        "phase": op.origin.phase,
    }
    stats |= {name: Name(text) for name, text in optional.items() if text}
    if op.flops is not None:  # of the optimised HLO, as XProf means both
        stats |= {"flops": round(op.flops), "model_flops": round(op.flops)}
    if op.bytes_accessed is not None:
        accessed = round(op.bytes_accessed)
        stats |= {
            "bytes_accessed": accessed,
            "raw_bytes_accessed": accessed,
            "memory_access_breakdown": _breakdown(op, accessed),
        }
    return plane.event_type(op.text, display_name=op.name, stats=stats)


def _breakdown(op: OpType, accessed: int) -> bytes:
    """All bytes as HBM's: what stays on chip is not known from HLO. A program's bytes, whose
    direction is not known, go under reads; XProf adds both."""
    message = MemoryAccessBreakdown()
    written = round(op.bytes_written or 0)
    for kind, count in ((READ, accessed - written), (WRITE, written)):
        if count > 0:
            message.memory_accessed.add(operation_type=kind, memory_space=HBM, bytes_accessed=count)
    out: bytes = message.SerializeToString()
    return out
