"""The detail tables of a run in the form that analyses ask for, each read at most once."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

import pandas as pd

from tpu_perf.analysis.op_flops import Call, OpFlops, flops_of_call, flops_of_op_name, parse_call
from tpu_perf.analysis.op_flops.call import CallFormatError
from tpu_perf.analysis.op_flops.formulas import Attention
from tpu_perf.record.store import StoredRun

UNKNOWN = "(unknown)"
OUTSIDE = "(outside any module)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A row of the site table."""

    file: str
    line: int
    function: str
    module: str
    module_class: str
    phase: str
    stack: str

    @property
    def place(self) -> tuple[str, int, str, str]:
        """The same for a forward op, its recomputation and its gradient."""
        return self.file, self.line, self.function, self.module

    @property
    def line_label(self) -> str:
        """`model.py:12 forward`."""
        if not self.file:
            return self.function or UNKNOWN
        return f"{PurePath(self.file).name}:{self.line} {self.function}".rstrip()

    @property
    def module_label(self) -> str:
        if not self.module:
            return OUTSIDE if self.file else UNKNOWN
        return f"{self.module} ({self.module_class})" if self.module_class else self.module


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOp:
    """A row of program_ops."""

    position: int
    op: str
    call: int
    site: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """A row of instructions; None where the table has null."""

    name: str
    opcode: str
    category: str
    positions: tuple[int, ...]
    flops: float | None
    bytes_moved: float | None  # read and written
    trip_count: float | None


def records(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows as named tuples whose fields are of any type."""
    return iter(frame.itertuples())


def _known(value: Any) -> float | None:
    """A figure of XLA's; null, NaN and the -1 that stands for "no idea" are not known."""
    return None if value is None or pd.isna(value) or value < 0 else float(value)


def _text(value: Any) -> str:
    return "" if value is None or pd.isna(value) else str(value)


class RunDetails:
    """Sites, calls, the ops and instructions of each program, and what buffers are."""

    def __init__(self, stored: StoredRun) -> None:
        self._stored = stored
        self._flops: dict[tuple[str, int, Attention], OpFlops] = {}

    @cached_property
    def sites(self) -> Mapping[int, Site]:
        return {
            int(row.site): Site(
                file=_text(row.file), line=int(row.line), function=_text(row.function),
                module=_text(row.module), module_class=_text(row.module_class),
                phase=_text(row.phase) or "other", stack=_text(row.stack),
            )
            for row in records(self._stored.detail("sites"))
        }  # fmt: skip

    @cached_property
    def _call_rows(self) -> pd.DataFrame:
        return self._stored.detail("calls").drop_duplicates("call", keep="last").set_index("call")

    @cached_property
    def calls(self) -> Mapping[int, Call | CallFormatError]:
        """Every call, or why its row cannot be read."""
        out: dict[int, Call | CallFormatError] = {}
        for number, row in self._call_rows.iterrows():
            try:
                out[int(str(number))] = parse_call(
                    str(row["op"]), row["names"], row["arguments"], row["results"]
                )
            except CallFormatError as error:
                out[int(str(number))] = error
        return out

    @cached_property
    def call_bytes(self) -> Mapping[int, tuple[int, int]]:
        """bytes_in and bytes_out of each call that knows them."""
        rows = self._call_rows[["bytes_in", "bytes_out"]].dropna()
        return {
            int(call): (int(read), int(made))
            for call, read, made in rows.itertuples()
            if read >= 0 and made >= 0
        }

    @cached_property
    def program_ops(self) -> Mapping[int, list[ProgramOp]]:
        """The ops of each program in order; programs of which nothing is known are absent."""
        out: dict[int, list[ProgramOp]] = defaultdict(list)
        rows = self._stored.detail("program_ops").sort_values(["program", "position"])
        for row in records(rows):
            out[int(row.program)].append(
                ProgramOp(
                    position=int(row.position),
                    op=_text(row.op),
                    call=int(row.call),
                    site=int(row.site),
                )
            )
        return dict(out)

    @cached_property
    def instructions(self) -> Mapping[int, list[Instruction]]:
        """The instructions of each program; programs without any are absent."""
        out: dict[int, list[Instruction]] = defaultdict(list)
        for row in records(self._stored.detail("instructions")):
            read, written = _known(row.bytes_read), _known(row.bytes_written)
            moved = None if read is None or written is None else read + written
            out[int(row.program)].append(
                Instruction(
                    name=_text(row.instruction),
                    opcode=_text(row.opcode),
                    category=_text(row.category),
                    positions=_positions(row.positions),
                    flops=_known(row.flops),
                    bytes_moved=moved,
                    trip_count=_known(row.trip_count),
                )
            )
        return dict(out)

    @cached_property
    def buffer_labels(self) -> pd.DataFrame:
        return self._stored.detail("buffer_labels")

    def site(self, number: int) -> Site | None:
        return self.sites.get(number)

    def flops(self, op: str, call: int, attention: Attention) -> OpFlops:
        """FLOPs of an op of a program, by its call or, where there is none, by its name."""
        key = op, call, attention
        if key not in self._flops:
            found = self.calls.get(call)
            if isinstance(found, Call):
                self._flops[key] = flops_of_call(found, attention)
            else:
                self._flops[key] = flops_of_op_name(op)
        return self._flops[key]


def _positions(text: Any) -> tuple[int, ...]:
    try:
        found = json.loads(text)
        return tuple(int(position) for position in found)
    except (TypeError, ValueError):
        return ()
