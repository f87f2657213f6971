"""Where the ops of a Chrome trace come from: lines, modules and phases, from what encloses them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tpu_perf.record.details import SITE_COLUMNS
from tpu_perf.record.store import table_of_rows

_PYTHON_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
_MODULE = "nn.Module: "
_BACKWARD = "autograd::engine::evaluate_function"
#: Frames that are torch's own, as its profiler shortens their paths.
_LIBRARIES = ("torch/", "<", "threading.py", "contextlib.py")
STACK_FRAMES = 8


@dataclass(frozen=True, slots=True)
class Span:
    """An event of a host thread: times in ns, category, name and arguments as recorded."""

    start_ns: int
    end_ns: int
    category: str
    name: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Context:
    end_ns: int
    frames: tuple[tuple[str, int, str], ...] = ()
    modules: tuple[str, ...] = ()
    phase: str = "other"
    sequence: int | None = None  # of the node that the backward pass is at


@dataclass(slots=True)
class Sites:
    """The site table of one capture."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    _known: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _of_sequence: dict[int, int] = field(default_factory=dict)

    def number(self, *row: Any) -> int:
        site = self._known.setdefault(row, len(self._known))
        if site == len(self.rows):
            self.rows.append((site, *row))
        return site

    def table(self) -> pa.Table:
        return table_of_rows(SITE_COLUMNS, self.rows)

    def of_thread(self, spans: Sequence[Span]) -> list[int]:
        """The site of each op (category cpu_op) among the spans of one thread, in the order
        given, -1 where nothing about its place was recorded. Spans are sorted by start, outer
        before inner. Threads that run forwards come before those that run backwards.

        An op of a backward pass has the place of the forward op whose sequence number the node
        has that it runs for. Lines
        are those on which functions begin: a trace holds no others.
        """
        sites = []
        stack: list[_Context] = []
        for span in spans:
            while stack and stack[-1].end_ns <= span.start_ns:
                stack.pop()
            around = stack[-1] if stack else _Context(span.end_ns)
            context = _inside(around, span)
            if span.category == "cpu_op":
                sites.append(self._site(span, context))
            stack.append(context)
        return sites

    def _site(self, span: Span, context: _Context) -> int:
        sequence = span.args.get("Sequence number")
        if context.phase == "backward":
            node = context.sequence
            forward = None if node is None else self._of_sequence.get(node)
            if forward is not None:
                file, line, function, module, kind, _, stack = self.rows[forward][1:]
                return self.number(file, line, function, module, kind, "backward", stack)
        if not context.frames and not context.modules and context.phase == "other":
            return -1
        file, line, function = context.frames[-1] if context.frames else ("", -1, "")
        recorded = span.args.get("Module Hierarchy")
        module = recorded if isinstance(recorded, str) and recorded else ".".join(context.modules)
        kind = context.modules[-1].rpartition("_")[0] if context.modules else ""
        frames = context.frames[: -STACK_FRAMES - 1 : -1]
        stack = "\n".join(f"{name}:{number} {what}" for name, number, what in frames)
        site = self.number(file, line, function, module, kind, context.phase, stack)
        if isinstance(sequence, int) and context.phase == "forward":
            self._of_sequence[sequence] = site
        return site


def _inside(around: _Context, span: Span) -> _Context:
    """What is known of everything inside this span."""
    frames, modules, phase = around.frames, around.modules, around.phase
    sequence = around.sequence
    if span.category == "python_function":
        if span.name.startswith(_MODULE):
            modules = (*modules, span.name.removeprefix(_MODULE))
            phase = "forward" if phase == "other" else phase
        elif not span.name.startswith(_LIBRARIES):
            frame = _PYTHON_FRAME.match(span.name)
            if frame:
                place = (frame["file"], int(frame["line"]), frame["function"])
                frames = (*frames, place)
    elif span.category == "user_annotation":
        if span.name.startswith("Optimizer."):
            phase = "optimizer"
    elif span.category == "cpu_op":
        own = span.args.get("Sequence number")
        if span.name.startswith(_BACKWARD) or span.args.get("Fwd thread id", 0) not in (0, None):
            phase = "backward"
            sequence = own if isinstance(own, int) else sequence
        elif phase == "other" and own is not None:
            phase = "forward"
    return _Context(span.end_ns, frames, modules, phase, sequence)
