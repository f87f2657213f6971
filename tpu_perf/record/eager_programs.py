"""Programs of TorchTPU's eager log: the aten graph and the StableHLO that it prints for each."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard

from tpu_perf.record.details import (
    CALL_COLUMNS,
    KEY_DIGITS,
    PROGRAM_OP_COLUMNS,
    SITE_COLUMNS,
    Columns,
)
from tpu_perf.record.events import PROGRAM_COLUMNS
from tpu_perf.record.store import RunWriter, table_of_rows

_VALUE = re.compile(r"^%(?P<number>\d+): (?P<types>.*?) = (?P<op>[\w.:]+)(?:\((?P<args>.*)\))?$")
_REFERENCE = re.compile(r"%(\d+)")
_TENSOR = re.compile(r"^(?P<dtype>\w+)\[(?P<shape>[\d, ]*)\]$")
_PLACE = re.compile(r"^(?P<file>.+):(?P<line>\d+) in (?P<function>.+)$")
_MODULE_NAME = re.compile(r"module @(\S+)")
_MAIN = re.compile(
    r"func\.func (?:public )?@main\((?P<inputs>.*?)\)\s*->\s*(?P<outputs>.*?)\s*\{\n", re.S
)
_TENSOR_TYPE = re.compile(r"tensor<((?:\d+x)*)([A-Za-z]\w*)>")
_DTYPES = {
    "pred": "bool",
    "i1": "bool",
    "bool": "bool",
    "bf16": "bfloat16",
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "c64": "complex64",
    "c128": "complex128",
}


@dataclass(slots=True)
class Program:
    number: int
    key: str
    name: str
    stablehlo: str
    ops: int
    kind: str


@dataclass(slots=True)
class Programs:
    """Programs by their StableHLO text, and the tables that describe them."""

    found: dict[str, Program] = field(default_factory=dict)
    by_first_op: dict[str, set[int]] = field(default_factory=dict)
    _ops: list[tuple[Any, ...]] = field(default_factory=list)
    _calls: dict[tuple[str, str, str], int] = field(default_factory=dict)
    _sites: dict[tuple[str, int, str], int] = field(default_factory=dict)

    def add(self, first_op: str, stablehlo: str, graph: str, kind: str | None = None) -> Program:
        """The program with this text; the graph is that of the batch that compiled it. `kind` as
        in the program table; None: by the number of ops."""
        key = hashlib.sha256(stablehlo.encode("utf-8", errors="surrogateescape")).hexdigest()
        program = self.found.get(key)
        if program is None:
            named = _MODULE_NAME.search(stablehlo)
            name = named[1] if named else first_op
            number = len(self.found)
            ops = self._add_ops(number, graph)
            kind = kind or ("op" if ops == 1 else "segment")
            program = self.found[key] = Program(number, key, name, stablehlo, ops, kind)
        self.by_first_op.setdefault(first_op, set()).add(program.number)
        return program

    def of_hit(self, first_op: str) -> int:
        """The program of a batch that the cache answered, whose log holds the name of its first
        op alone: the only program known to begin so, else -1."""
        numbers = self.by_first_op.get(first_op, set())
        return next(iter(numbers)) if len(numbers) == 1 else -1

    def _add_ops(self, program: int, graph: str) -> int:
        types: dict[int, Any] = {}
        position = 0
        for raw in graph.splitlines():
            text, _, comment = raw.strip().partition("    # ")
            value = _VALUE.match(text.strip())
            if value is None:
                continue
            results = _types(value["types"])
            types[int(value["number"])] = results[0] if len(results) == 1 else results
            if value["op"] == "input" and value["args"] is None:
                continue
            op = value["op"] if "::" in value["op"] else f"aten::{value['op']}"
            references = _REFERENCE.findall(value["args"] or "")
            arguments = [types.get(int(number)) for number in references]
            key = (op, json.dumps(arguments), json.dumps(results))
            call = self._calls.setdefault(key, len(self._calls))
            self._ops.append((program, position, op, call, self._site(comment)))
            position += 1
        return position

    def _site(self, comment: str) -> int:
        place = _PLACE.match(comment.strip())
        if place is None:
            return -1
        found = (place["file"], int(place["line"]), place["function"])
        return self._sites.setdefault(found, len(self._sites))

    def table(self) -> pa.Table:
        """The program table; what XLA makes of a program is not in the log."""
        rows = []
        for program in self.found.values():
            moved = boundary_bytes(program.stablehlo)
            bytes_in, bytes_out = moved or (None, None)
            unknown = (None, None, None, None)
            row = (program.number, program.key, program.name, program.kind, program.ops or -1)
            rows.append((*row, bytes_in, bytes_out, *unknown))
        return table_of_rows(PROGRAM_COLUMNS, rows)

    def details(self) -> Mapping[str, pa.Table]:
        """Sites, ops and calls; which names arguments have is not in the log."""
        sites = [
            (site, *place, "", "", "other", f"{place[0]}:{place[1]} {place[2]}")
            for place, site in self._sites.items()
        ]
        calls = [
            (number, op, "[]", arguments, results, None, None)
            for (op, arguments, results), number in self._calls.items()
        ]
        rows: dict[str, tuple[Columns, list[Any]]] = {
            "sites": (SITE_COLUMNS, sites),
            "program_ops": (PROGRAM_OP_COLUMNS, self._ops),
            "calls": (CALL_COLUMNS, calls),
        }
        return {name: table_of_rows(*columns_and_rows) for name, columns_and_rows in rows.items()}

    def write_files(self, directory: Path) -> None:
        """`<key>/stablehlo.mlir.zst` for every program."""
        for program in self.found.values():
            place = directory / program.key[:KEY_DIGITS]
            place.mkdir(parents=True, exist_ok=True)
            raw = program.stablehlo.encode("utf-8", errors="surrogateescape")
            packed = zstandard.ZstdCompressor().compress(raw)
            (place / "stablehlo.mlir.zst").write_bytes(packed)

    def write(self, writer: RunWriter) -> None:
        """Write programs.parquet, the detail tables, and each program's StableHLO."""
        self.write_files(writer.partial / "programs")
        writer.write_programs(self.table())
        for name, table in self.details().items():
            writer.write_detail(name, table)


def _types(text: str) -> list[Any]:
    """`f32[4, 8]` as {"dtype": "float32", "shape": [4, 8]}; what is no tensor as its text."""
    out: list[Any] = []
    for part in re.split(r",\s*(?=[a-z])", text.strip("()")):
        tensor = _TENSOR.match(part.strip())
        if tensor is None:
            out.append(part.strip())
            continue
        shape = [int(size) for size in tensor["shape"].split(",") if size.strip()]
        out.append({"dtype": _DTYPES.get(tensor["dtype"], tensor["dtype"]), "shape": shape})
    return out


def boundary_bytes(stablehlo: str) -> tuple[int, int] | None:
    """Bytes of the arguments and of the results of @main by its signature; None where a type in
    it is not a tensor of fixed shape with elements of whole bytes."""
    main = _MAIN.search(stablehlo)
    if main is None:
        return None
    totals = []
    for side in (main["inputs"], main["outputs"]):
        if side.count("tensor<") != len(_TENSOR_TYPE.findall(side)) or "!" in side:
            return None
        total = 0
        for shape, dtype in _TENSOR_TYPE.findall(side):
            bits = re.search(r"\d+$", dtype.partition("E")[0].replace("bf", "f"))
            width = 8 if dtype == "i1" else int(bits[0]) if bits else 0
            if width == 0 or width % 8 or dtype.startswith("f8"):
                return None
            total += math.prod(int(size) for size in shape.split("x") if size) * (width // 8)
        totals.append(total)
    return totals[0], totals[1]
