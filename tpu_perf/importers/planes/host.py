"""Host planes of a capture: dispatches, program calls, transfers, waits, steps, allocations."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tpu_perf.importers.planes.capture_file import Event, Plane
from tpu_perf.importers.planes.device import read_op
from tpu_perf.importers.planes.tables import NO_PROGRAM, Collected
from tpu_perf.record.events import Tier

_ALLOCATION, _DEALLOCATION = "MemoryAllocation", "MemoryDeallocation"
_JIT = "PjitFunction("
_UNSAFE = re.compile(r"[^\w.-]")
UNKNOWN = -1

#: How JAX and PJRT name what they do on the host (jaxlib 0.10), by the beginning of the name.
_EXECUTES = ("DoEnqueueProgram", "CommonPjRtLoadedExecutable::ExecuteHelperOnSingleDevice")
_TO_DEVICE = ("BufferFromHostBuffer", "TransferToDevice", "PjRtCApiClient::BufferFromHost")
_TO_HOST = ("TransferFromDevice", "CopyToHost", "ToLiteral")
_WAITS = ("CommonPjRtBuffer::Await", "BlockHostUntilReady", "PjRtCApiBuffer::Await")


def read_host_plane(plane: Plane, into: Collected) -> None:
    """Events of every line, which stands for a thread; what is not understood is kept."""
    for thread, (line, _, events) in enumerate(plane.lines):
        reader = _Line(into, f"{plane.name}/{line}", thread)
        for event in events:
            reader.read(event)


class _Line:
    """Reads the events of one thread in order; remembers which jitted function is open."""

    def __init__(self, into: Collected, where: str, thread: int) -> None:
        self._into, self._where, self._thread = into, where, thread
        self._function, self._function_end = "", -1

    def read(self, event: Event) -> None:
        kind = event.type.stats.get("event_kind")
        own = _OWN.get(kind) if isinstance(kind, str) else None
        name = event.type.text
        if own is not None:
            own(self, event)
        elif isinstance(event.stat("step_num"), int) and event.stat("_r"):
            self._step(event)
        elif event.stat("hlo_op"):
            read_op(event, self._into, self._where.removeprefix("/host:"))
        elif name in (_ALLOCATION, _DEALLOCATION) and _has_sizes(event):
            self._memory(event)
        elif name.startswith(_JIT) and event.start_ns >= self._function_end:
            # JAX writes each call twice, one within the other: the inner one is kept below.
            self._function, self._function_end = name[len(_JIT) : -1], event.end_ns
            self._into.add(
                "dispatch", event.start_ns, event.end_ns, name, UNKNOWN, None, UNKNOWN, self._thread
            )
        elif name.startswith(_EXECUTES):
            self._execute(event)
        elif name.startswith(_TO_DEVICE):
            self._transfer(event, "h2d")
        elif name.startswith(_TO_HOST):
            self._transfer(event, "d2h")
        elif name.startswith(_WAITS):
            self._into.add("sync", event.start_ns, event.end_ns, name, None)
        else:
            start, end = event.start_ns, event.end_ns
            self._into.keep(event.type.name, start, end, self._where, self._thread)

    def _step(self, event: Event) -> None:
        phase = event.stat("phase")
        number = int(event.stat("step_num"))
        self._into.steps.append(
            (number, phase if isinstance(phase, str) else "timed", event.start_ns, event.end_ns)
        )
        self._into.counts["step"] += 1

    def _fence(self, event: Event) -> None:
        self._into.fences[event.end_ns] = event.start_ns

    def _memory(self, event: Event) -> None:
        size = int(event.stat("allocation_bytes"))
        delta = size if event.type.text == _ALLOCATION else -size
        live = event.stat("bytes_allocated")
        buffer = event.stat("addr")
        self._into.add(
            "memory",
            event.start_ns,
            delta,
            live if isinstance(live, int) else UNKNOWN,
            None,
            # An address may need all 64 bits, and the column is signed.
            buffer & (2**63 - 1) if isinstance(buffer, int) else UNKNOWN,
            UNKNOWN,
        )

    def _execute(self, event: Event) -> None:
        """The program: by run_id, through the device's modules; on a CPU by the name of the jitted
        function around the call."""
        program = NO_PROGRAM
        if event.start_ns < self._function_end:
            # JAX names modules by what of a function's name may stand in a symbol.
            name = _UNSAFE.sub("_", f"jit_{self._function}").rstrip("_")
            program = self._into.programs.called(name)
        row = self._into.add(
            "execute", event.start_ns, event.end_ns, program, int(Tier.MEMORY), None
        )
        run_id = event.stat("run_id")
        if isinstance(run_id, int):
            self._into.unlinked.append((row, run_id))

    def _transfer(self, event: Event, direction: str) -> None:
        size = event.stat("bytes")
        self._into.add(
            "transfer",
            event.start_ns,
            event.end_ns,
            direction,
            size if isinstance(size, int) else UNKNOWN,
            None,
        )

    def _program(self, event: Event) -> int:
        name = event.stats.get("program")
        return self._into.programs.of_module(name) if isinstance(name, str) else NO_PROGRAM

    def _tier(self, event: Event) -> int:
        name = str(event.stats.get("tier", "")).upper()
        return int(Tier[name]) if name in Tier.__members__ else UNKNOWN

    def own_dispatch(self, event: Event) -> None:
        self._add(event, "dispatch", _label(event), self._program(event), None,
                  self._site(event), self._thread)  # fmt: skip

    def own_execute(self, event: Event) -> None:
        self._add(event, "execute", self._program(event), self._tier(event), None)

    def own_compile(self, event: Event) -> None:
        times = (_whole(event, "trace_ns"), _whole(event, "backend_ns"))
        words = (_word(event, "differed"), _word(event, "source"))
        self._add(event, "compile", self._program(event), self._tier(event), *times, *words, None)

    def own_flush(self, event: Event) -> None:
        self._add(event, "flush", _label(event), _whole(event, "ops"), self._program(event), None)

    def own_lookup(self, event: Event) -> None:
        tier = _label(event).upper()
        self._add(event, "lookup", self._program(event), _word(event, "key"),
                  int(Tier[tier]) if tier in Tier.__members__ else UNKNOWN,
                  _whole(event, "hit"), _word(event, "differed"), None)  # fmt: skip

    def own_annotation(self, event: Event) -> None:
        kind = str(event.type.stats.get("annotation_kind", ""))
        self._add(event, "annotation", _label(event), kind, self._thread, None)

    def _site(self, event: Event) -> int:
        file, _, line = _word(event, "source").rpartition(":")
        module = _word(event, "module")
        if not (file or module):
            return UNKNOWN
        number = int(line) if line.isdecimal() and len(line) < 9 else -1
        sites = self._into.instructions.sites
        for site, known in sites.items():
            if (site[0], site[1], site[3]) == (file, number, module):
                return known
        return sites.setdefault((file, number, "", module, "", "other", ""), len(sites))

    def _add(self, event: Event, kind: str, *row: Any) -> None:
        self._into.add(kind, event.start_ns, event.end_ns, *row)


def _label(event: Event) -> str:
    return str(event.type.stats.get("event_name", event.type.text))


def _whole(event: Event, stat: str) -> int:
    value = event.stats.get(stat)
    return value if isinstance(value, int) else UNKNOWN


def _word(event: Event, stat: str) -> str:
    value = event.stats.get(stat)
    return value if isinstance(value, str) else ""


def _has_sizes(event: Event) -> bool:
    return isinstance(event.stat("allocation_bytes"), int)


#: Our own exports say from which table an event came (stat `event_kind`).
_OWN: dict[str, Callable[[_Line, Event], None]] = {
    "step": _Line._step,
    "fence": _Line._fence,
    "dispatch": _Line.own_dispatch,
    "execute": _Line.own_execute,
    "compile": _Line.own_compile,
    "flush": _Line.own_flush,
    "lookup": _Line.own_lookup,
    "annotation": _Line.own_annotation,
    "transfer": lambda line, event: line._transfer(event, _label(event)),
    "sync": lambda line, event: line._add(event, "sync", _label(event), None),
    "fallback": lambda line, event: line._add(event, "fallback", _label(event), None),
}
