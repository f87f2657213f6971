"""What an import fills: rows of events, programs, instructions and where their ops came from."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tpu_perf.importers.planes.capture_file import EventType
from tpu_perf.xplane.schema import READ, WRITE, MemoryAccessBreakdown, decode

Row = tuple[Any, ...]

#: "name(program_id)", as XLA's profiler names modules.
MODULE_NAME = re.compile(r"^(?P<name>.*?)\((?P<id>\d+)\)$")
OPCODE = re.compile(r"=\s+(?:\([^=]*?\)|\S+)\s+(?P<opcode>[a-z][a-z0-9-]*)\(")

NO_PROGRAM = -1


@dataclass
class Programs:
    """The programs of a capture, numbered in the order in which they are met."""

    names: list[str] = field(default_factory=list)
    hlo: dict[int, bytes] = field(default_factory=dict)
    #: bytes_in, bytes_out, bytes_accessed and flops of programs whose HLO could be read.
    costs: dict[int, Row] = field(default_factory=dict)
    _by_id: dict[Any, int] = field(default_factory=dict)

    def number(self, program_id: object, name: str = "") -> int:
        """The number of the program with this id (or, without one, of this name); -1 for neither.
        A name that comes later than the id is taken over."""
        key = program_id if isinstance(program_id, int) else (name or None)
        if key is None:
            return NO_PROGRAM
        found = self._by_id.setdefault(key, len(self.names))
        if found == len(self.names):
            self.names.append(name)
        elif name and not self.names[found]:
            self.names[found] = name
        return found

    def of_module(self, module: str) -> int:
        """The program of an event or metadata called "name(id)", or just "name"."""
        match = MODULE_NAME.match(module)
        if match is None:
            return self.number(None, module)
        return self.number(int(match["id"]), match["name"])

    def called(self, name: str) -> int:
        """The one program of this name; -1 where there are none or several."""
        found = [number for number, known in enumerate(self.names) if known == name]
        return found[0] if len(found) == 1 else NO_PROGRAM

    def key(self, number: int) -> str:
        """Names the directory of the program: a digest of its HLO, else of its name and number."""
        content = self.hlo.get(number) or f"{number} {self.names[number]}".encode()
        return hashlib.sha256(content).hexdigest()

    def rows(self) -> list[Row]:
        """Rows of programs.parquet; what a capture does not say is unknown."""
        unknown: Row = (None,) * 4
        return [
            (number, self.key(number), name or f"program {number}", "graph", -1,
             *self.costs.get(number, unknown), None, None)
            for number, name in enumerate(self.names)
        ]  # fmt: skip


@dataclass
class Instructions:
    """Instructions and the ops and sites they name, each once."""

    rows: list[Row] = field(default_factory=list)
    program_ops: list[Row] = field(default_factory=list)
    sites: dict[Row, int] = field(default_factory=dict)
    undirected: int = 0  # instructions whose bytes are known but not their direction
    _known: set[tuple[int, str]] = field(default_factory=set)
    _positions: Counter[int] = field(default_factory=Counter)

    def add(self, program: int, instruction: str, kind: EventType) -> None:
        """Add an instruction as its event type describes it, unless it is known."""
        if program == NO_PROGRAM or (program, instruction) in self._known:
            return
        self._known.add((program, instruction))
        read, written = self._bytes(kind)
        opcode = OPCODE.search(kind.text)
        self.rows.append(
            (
                program,
                instruction,
                opcode["opcode"] if opcode else "",
                _text(kind, "hlo_category"),
                "",
                json.dumps(self._op(program, kind)),
                _number(kind, "flops"),
                read,
                written,
                None,
                _text(kind, "shape_with_layout"),
                kind.text,
            )
        )

    def _bytes(self, kind: EventType) -> tuple[float | None, float | None]:
        """Bytes read and written: by the breakdown if there is one, else all of them as read."""
        breakdown = decode(MemoryAccessBreakdown, kind.stats.get("memory_access_breakdown"))
        if breakdown is not None and breakdown.memory_accessed:
            totals: dict[int, float] = defaultdict(float)
            for access in breakdown.memory_accessed:
                totals[access.operation_type] += access.bytes_accessed
            return totals[READ], totals[WRITE]
        accessed = _number(kind, "bytes_accessed")
        if accessed is None:
            return None, None
        self.undirected += 1
        return accessed, 0.0

    def _op(self, program: int, kind: EventType) -> list[int]:
        """The position of the op that the instruction names; an empty list without one."""
        path = _text(kind, "tf_op").removesuffix(":")
        file, _, line = _text(kind, "source").rpartition(":")
        number = int(line) if line.isdecimal() and len(line) < 9 else -1
        return self._add_op(program, path, file, number, _text(kind, "phase"),
                            _text(kind, "source_stack"))  # fmt: skip

    def named_op(self, program: int, path: str, file: str, line: int) -> str:
        """The positions column of an instruction whose HLO has this op_name and place."""
        return json.dumps(self._add_op(program, path, file, line))

    def _add_op(
        self, program: int, path: str, file: str, line: int, phase: str = "", stack: str = ""
    ) -> list[int]:
        if not path:
            return []
        module, _, op = path.rpartition("/")
        if "::" in op:  # one of our exports: module paths have dots
            module = module.replace("/", ".")
        site = (file, line, "", module, "", phase or _phase(path), stack)
        site_number = self.sites.setdefault(site, len(self.sites))
        position = self._positions[program]
        self._positions[program] += 1
        self.program_ops.append((program, position, op, -1, site_number))
        return [position]

    def site_rows(self) -> list[Row]:
        return [(number, *site) for site, number in self.sites.items()]


@dataclass
class Collected:
    """Everything read so far. Event rows lack their step, which is known only at the end: they
    hold None in its place."""

    programs: Programs = field(default_factory=Programs)
    instructions: Instructions = field(default_factory=Instructions)
    events: dict[str, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)
    steps: list[tuple[int, str, int, int]] = field(
        default_factory=list
    )  # number, phase, start, end
    device_steps: list[tuple[int, str, int, int]] = field(default_factory=list)
    fences: dict[int, int] = field(default_factory=dict)  # end of the step -> start of the wait
    run_programs: dict[int, int] = field(default_factory=dict)  # run_id -> program
    unlinked: list[tuple[list[Any], int]] = field(default_factory=list)  # execute rows, run_id
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, *row: Any) -> list[Any]:
        stored = list(row)
        self.events[kind].append(stored)
        self.counts[kind] += 1
        return stored

    def keep(self, event_name: str, start_ns: int, end_ns: int, where: str, thread: int) -> None:
        """Keep an event that nothing here understands, under the plane and line it came from."""
        self.events["annotation"].append([start_ns, end_ns, event_name, where, thread, None])
        self.counts[f"kept as annotation: {where}"] += 1


def _phase(path: str) -> str:
    """By how JAX names what it differentiates: "jit(f)/transpose(jvp(f))/dot_general"."""
    if "transpose(" in path:
        return "backward"
    return "forward" if "jvp(" in path else "other"


def _text(kind: EventType, stat: str) -> str:
    value = kind.stats.get(stat)
    return value if isinstance(value, str) else ""


def _number(kind: EventType, stat: str) -> float | None:
    """A count as float; None where it is absent or the negative number that says "no idea"."""
    value = kind.stats.get(stat)
    return float(value) if isinstance(value, int | float) and value >= 0 else None
