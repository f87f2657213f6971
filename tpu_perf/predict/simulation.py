"""The device's lanes: the core runs instructions in order, queues carry what is asynchronous.

A loop's iterations are simulated until one takes as long as the one before; the rest are copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tpu_perf.hlo.loops import trip_count
from tpu_perf.hlo.module import Computation, Instruction, Module
from tpu_perf.predict.instruction_time import InstructionTime, Queue, Times

#: Iterations of a loop that are simulated at most; they settle after two or three.
_MOST_SIMULATED = 8
#: An iteration that differs by less from the one before is taken to repeat.
_SETTLED = 1e-6
QUEUES: tuple[Queue, ...] = ("dma", "host link", "ici", "ici back", "dcn")
COMMUNICATION: tuple[Queue, ...] = ("ici", "ici back", "dcn")


@dataclass(frozen=True, slots=True)
class Span:
    """One instruction on a lane, seconds since the program began."""

    begin_s: float
    end_s: float
    lane: str
    instruction: Instruction


@dataclass(slots=True)
class Timeline:
    """One execution of a program on a device.

    `busy_s` are seconds of the core by what bounds it ("mxu", "hbm", ...), those it waited for a
    queue under that queue's name: exposed communication is that of COMMUNICATION. `work_s` are
    seconds by source. `unknown_loops` are loops counted once because nobody knows how often they
    run.
    """

    seconds: float = 0.0
    busy_s: dict[str, float] = field(default_factory=dict)
    queue_s: dict[str, float] = field(default_factory=dict)
    work_s: dict[str, float] = field(default_factory=dict)
    flops: float = 0.0
    hbm_bytes: float = 0.0
    spans: list[Span] = field(default_factory=list)
    unknown_loops: list[str] = field(default_factory=list)


def simulate(module: Module, times: Times, *, spans: bool = False) -> Timeline:
    """Run the module once on one device; `spans` keeps what ran when."""
    return _Device(times, spans).run(module)


class _Device:
    def __init__(self, times: Times, keep_spans: bool) -> None:
        self._times = times
        self._keep = keep_spans
        self._known: dict[Instruction, InstructionTime] = {}
        self.now = 0.0
        self._free: dict[str, float] = dict.fromkeys(QUEUES, 0.0)
        self._ends: dict[Instruction, tuple[float, str]] = {}
        self.found = Timeline()

    def run(self, module: Module) -> Timeline:
        self._computation(module.entry)
        self.found.seconds = max(self.now, *self._free.values())
        self._count("busy_s", "tail", self.found.seconds - self.now)
        return self.found

    def _time(self, one: Instruction) -> InstructionTime:
        if one not in self._known:
            self._known[one] = self._times.of(one)
        return self._known[one]

    def _computation(self, computation: Computation) -> None:
        for one in computation.instructions:
            if one.opcode == "while" and len(one.called) == 2:
                self._loop(one)
            elif one.opcode in ("call", "conditional"):
                for callee in one.called[:1]:
                    self._computation(callee)
            else:
                self._instruction(one)

    def _instruction(self, one: Instruction) -> None:
        time = self._time(one)
        if time.waits_for is not None:
            self._wait(time.waits_for)
            return
        if time.seconds == 0.0:
            return
        self.found.flops += time.flops
        self.found.hbm_bytes += time.hbm_bytes
        self._count("work_s", time.source, time.seconds)
        if time.queue == "core":
            begin = self.now
            self.now += time.seconds
            self._count("busy_s", time.unit, time.seconds)
            self._span(begin, self.now, "core", one)
            return
        begin = max(self.now, self._free[time.queue])
        end = begin + time.seconds
        self._free[time.queue] = end
        self._count("queue_s", time.queue, time.seconds)
        self._span(begin, end, time.queue, one)
        self._ends[one] = (end, time.queue)
        if not time.asynchronous:
            self._wait(one)

    def _wait(self, start: Instruction) -> None:
        end, queue = self._ends.get(start, (self.now, ""))
        if end > self.now:
            self._count("busy_s", queue, end - self.now)
            self.now = end

    def _loop(self, loop: Instruction) -> None:
        count = trip_count(loop)
        if count is None:
            self.found.unknown_loops.append(loop.name)
            count = 1
        body = loop.called[0]
        before: float | None = None
        for number in range(count):
            left = count - number - 1
            begin, spans_before = self.now, len(self.found.spans)
            totals = self._totals()
            queues, ends = dict(self._free), dict(self._ends)
            self._computation(body)
            took = self.now - begin
            settled = before is not None and abs(took - before) <= _SETTLED * max(took, 1e-12)
            if left and (settled or number + 1 >= _MOST_SIMULATED):
                self._repeat(left, took, totals, spans_before)
                # What this iteration left behind is left behind by the last one.
                for queue, value in self._free.items():
                    if value > queues[queue]:
                        self._free[queue] = value + left * took
                for start, (end, queue) in self._ends.items():
                    if ends.get(start) != (end, queue):
                        self._ends[start] = (end + left * took, queue)
                return
            before = took

    def _totals(self) -> Mapping[str, object]:
        found = self.found
        return {
            "busy_s": dict(found.busy_s), "queue_s": dict(found.queue_s),
            "work_s": dict(found.work_s), "flops": found.flops, "hbm_bytes": found.hbm_bytes,
        }  # fmt: skip

    def _repeat(
        self, left: int, took: float, before: Mapping[str, object], spans_before: int
    ) -> None:
        """Add `left` copies of the iteration that was simulated last."""
        found = self.found
        for name in ("busy_s", "queue_s", "work_s"):
            counts, old = getattr(found, name), before[name]
            assert isinstance(old, dict)
            for key, value in counts.items():
                counts[key] = value + left * (value - old.get(key, 0.0))
        for name in ("flops", "hbm_bytes"):
            old_total = before[name]
            assert isinstance(old_total, float)
            value = getattr(found, name)
            setattr(found, name, value + left * (value - old_total))
        self.now += left * took
        if self._keep:
            self._repeat_spans(left, took, spans_before)

    def _repeat_spans(self, left: int, took: float, since: int) -> None:
        fresh = self.found.spans[since:]
        for number in range(1, left + 1):
            shift = number * took
            self.found.spans += [
                Span(one.begin_s + shift, one.end_s + shift, one.lane, one.instruction)
                for one in fresh
            ]

    def _count(self, name: str, key: str, seconds: float) -> None:
        counts = getattr(self.found, name)
        counts[key] = counts.get(key, 0.0) + seconds

    def _span(self, begin: float, end: float, lane: str, one: Instruction) -> None:
        if self._keep:
            self.found.spans.append(Span(begin, end, lane, one))


def device_events(
    timeline: Timeline, program: int, step: int, begin_ns: int
) -> Iterator[tuple[int, int, int, str, str, int]]:
    """Rows of the run directory's device events (`record.events.DEVICE`), whole program first."""
    end_ns = begin_ns + round(timeline.seconds * 1e9)
    yield begin_ns, end_ns, program, "", "module", step
    for one in sorted(timeline.spans, key=lambda span: span.begin_s):
        first, last = (begin_ns + round(at * 1e9) for at in (one.begin_s, one.end_s))
        yield first, last, program, one.instruction.name, f"predicted {one.lane}", step
