"""DeferAndFuse: ops become a segment, a segment is cut and run as one program.

Segments are one per thread. A value that another thread needs makes that thread run the owner's
segment first, under the segment's lock.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from tpu_perf.recorder import active
from tpu_perf.runtime.buffers import Buffer, Spec, buffer_of
from tpu_perf.runtime.call_plan import CallPlan, assemble
from tpu_perf.runtime.failures import Failed, large_bytes
from tpu_perf.runtime.forking import refuse_in_child
from tpu_perf.runtime.program_cache import CACHE, Program, user_line
from tpu_perf.runtime.random_numbers import GENERATOR, Draws
from tpu_perf.runtime.repeats import Repeats
from tpu_perf.runtime.replaying import Draw, Node, pack, parts_of, replay
from tpu_perf.runtime.torch_private import (
    graph_task,
    on_autograd_worker,
    run_backward_on_calling_thread,
)

_clock = time.perf_counter_ns

#: References to a buffer that nobody outside the segment holds: the local variable and
#: getrefcount's own argument.
_UNOWNED = 2

#: References to an input array that only its buffer and this segment hold: the inputs list, the
#: replaced table, the buffer, the loop variable and getrefcount's own argument.
_SOLE_HOLDERS = 5


class Segment:
    """The ops a thread has recorded and not yet run."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.repeats = Repeats()
        self.cuts_on_repeats = True
        self.on_autograd_worker = False
        self._large_bytes = large_bytes()
        self._reset()

    def _reset(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[jax.Array] = []
        self.input_values: list[int] = []
        self.input_buffers: list[Buffer] = []
        self.owners: list[Buffer] = []
        self.replaced: dict[int, tuple[jax.Array, Spec, int]] = {}
        self.numbers: list[tuple[Any, ...]] = []
        self.draws: list[Draw] = []
        self.large: dict[int, str] = {}
        self._value_of: dict[int, int] = {}
        self._count = 0

    def record(
        self, plan: CallPlan, buffers: list[Buffer], numbers: Any, tensors: Any,
        draws: Draws = GENERATOR,
    ) -> Any:  # fmt: skip
        """Append one op; returns its (still pending) result."""
        for slot in plan.reads:
            pending = buffers[slot].segment
            if pending is not None and pending is not self:
                pending.flush("unknown")  # before our lock: its thread may want ours
        with self.lock:
            if self.on_autograd_worker:
                _flush_after_backward()
            ids = tuple([self._read(buffers[slot]) for slot in plan.reads])
            count = self._count
            fresh = []
            owners = self.owners
            for output in plan.fresh:
                tensor = output.tensor(None)
                buffer = buffer_of(tensor)
                buffer.segment = self
                buffer.value = count
                count += 1
                owners.append(buffer)
                fresh.append(tensor)
            for slot in plan.mutated:
                buffer = buffers[slot]
                array = buffer.array
                if buffer.segment is None and array is not None and not buffer.shared:
                    self.replaced[id(array)] = (array, buffer.spec, id(buffer))
                buffer.segment = self
                buffer.value = count
                count += 1
                owners.append(buffer)
            if plan.bytes_out >= self._large_bytes:
                self.large[len(self.nodes)] = user_line() or "unknown"
            self.nodes.append((plan, ids, tuple(range(self._count, count))))
            self._count = count
            if numbers:
                self.numbers.append(tuple(numbers))
            if plan.random:
                self.draws.append((*draws.take(), draws))
            if self.cuts_on_repeats and self.repeats.see(plan.uid):
                self.flush("repeated_op_heuristic")
            if plan.single:
                return fresh[0]
            return assemble(plan.returns, fresh, tensors)

    def _read(self, buffer: Buffer) -> int:
        if buffer.segment is self:
            return buffer.value
        array = buffer.array
        if buffer.segment is not None or array is None:
            array = buffer.ready("unknown")
        value = self._value_of.get(id(array))
        if value is None:
            value = self._value_of[id(array)] = self._count
            self._count += 1
            self.inputs.append(array)  # keeps id(array) from being reused
            self.input_values.append(value)
            if not self.cuts_on_repeats:
                self.input_buffers.append(buffer)  # whole-step capture asks where values come from
        return value

    def flush(self, reason: str) -> None:
        """Run what was recorded; results that nobody can see any more are not produced."""
        with self.lock:
            if not self.nodes:
                return
            refuse_in_child()
            recorder = active.recorder
            start = _clock() if recorder is not None else 0
            work = self.take_work()
            try:
                program, arguments = work.program()
                outs = program.run(*arguments)
            except BaseException as error:
                raise work.fail(error) from error
            work.store(outs)
            if recorder is not None:
                recorder.flush((start, _clock(), reason, len(work.nodes), program.index,
                                recorder.step))  # fmt: skip

    def take_work(self) -> Work:
        """Detach everything recorded as a unit of work, leaving the segment empty."""
        owners, self.owners = self.owners, []
        owners.reverse()  # the last write to a buffer is the value it has now
        latest = list({id(buffer): buffer for buffer in owners}.values())
        owners.clear()
        kept: list[Buffer] = []
        while latest:
            buffer = latest.pop()
            if sys.getrefcount(buffer) > _UNOWNED:
                kept.append(buffer)
            else:
                buffer.segment = None
        # XLA reuses a donated array only for an output of its shape and type.
        homes = Counter(buffer.spec for buffer in kept)
        donated = []
        for i in range(len(self.inputs)):  # enumerate would hold a reference of its own
            array = self.inputs[i]
            entry = self.replaced.get(id(array))
            if entry is None or sys.getrefcount(array) > _SOLE_HOLDERS:
                continue
            if homes[entry[1]]:
                homes[entry[1]] -= 1
                donated.append(i)
        if donated:
            kept = _in_order_of_donation(
                kept, [self.replaced[id(self.inputs[i])][1:] for i in donated]
            )
        kept_values = [buffer.value for buffer in kept]
        work = Work(self.nodes, self.inputs, self.input_values, self.input_buffers, self.numbers,
                    self.draws, kept, tuple(kept_values), tuple(donated), self.large)  # fmt: skip
        self._reset()
        return work


def _in_order_of_donation(kept: list[Buffer], donors: list[tuple[Spec, int]]) -> list[Buffer]:
    """JAX gives the nth donated array of a shape and type to the nth output of that kind. Outputs
    are put so that a buffer gets its own array back; otherwise state would swap places, and XLA
    copy it. `donors` are the specs of the donated arrays and the ids of their buffers."""
    rest = {id(buffer): buffer for buffer in kept}
    own = [rest.pop(buffer_id, None) for _, buffer_id in donors]
    ordered = []
    for (spec, _), buffer in zip(donors, own, strict=True):
        if buffer is None:  # written, and gone since: some other output may have its memory
            buffer = next((b for b in rest.values() if b.spec is spec), None)
            if buffer is None:
                continue
            del rest[id(buffer)]
        ordered.append(buffer)
    return [*ordered, *rest.values()]


class Work:
    """A detached segment: nodes, their inputs, and which values are wanted."""

    __slots__ = (
        "donated",
        "draws",
        "input_buffers",
        "input_values",
        "inputs",
        "large",
        "live",
        "live_values",
        "nodes",
        "numbers",
    )

    def __init__(
        self, nodes: list[Node], inputs: list[jax.Array], input_values: list[int],
        input_buffers: list[Buffer], numbers: list[tuple[Any, ...]], draws: list[Draw],
        live: list[Buffer], live_values: tuple[int, ...], donated: tuple[int, ...],
        large: dict[int, str],
    ) -> None:  # fmt: skip
        self.nodes = nodes
        self.inputs = inputs
        self.input_values = input_values
        self.input_buffers = input_buffers
        self.numbers = numbers
        self.draws = draws
        self.live = live
        self.live_values = live_values
        self.donated = donated
        #: Lines of the ops (by number) that make large values.
        self.large = large

    def key(self) -> tuple[Any, ...]:
        """What decides the program: the ops, how they are wired, and what is wanted."""
        return (
            tuple([(plan.uid, ids, outs) for plan, ids, outs in self.nodes]),
            tuple(self.input_values),
            self.live_values,
            self.donated,
        )

    def program(self) -> tuple[Program, list[Any]]:
        """The program (compiled if it is new) and its arguments."""
        return program_for(self.key(), self.build), [*self.inputs, *self.packed()]

    def store(self, outs: tuple[jax.Array, ...]) -> None:
        """Give the wanted buffers their arrays."""
        for buffer, array in zip(self.live, outs, strict=True):
            buffer.segment = None
            buffer.value = -1
            buffer.fill(array)

    def fail(self, error: BaseException) -> BaseException:
        """The program could not run: whoever asks for its results is told. Returns the error
        with the lines of the ops it may come from."""
        ops = [f"{self.nodes[i][0].op} at {line}" for i, line in self.large.items()]
        if ops and isinstance(error, torch.OutOfMemoryError):
            error = torch.OutOfMemoryError(f"{error}. Large values are made by {', '.join(ops)}")
        for buffer in self.live:
            buffer.segment = Failed(error)
            buffer.value = -1
        return error

    def packed(self) -> list[Any]:
        """Run-time numbers and draw offsets as one array a kind: a scalar argument each would
        cost microseconds apiece."""
        return pack(self.numbers, self.draws)

    def build(self) -> Program:
        compute = replay(self.nodes, self.input_values, self.live_values, bool(self.draws))
        avals = [(tuple(a.shape), np.dtype(a.dtype)) for a in self.inputs]
        avals += [(p.shape, p.dtype) for p in self.packed()]
        first = self.nodes[0][0].op.removeprefix("aten::")
        return CACHE.build(
            name=f"segment_{first}_{len(self.nodes)}",
            kind="segment",
            ops=len(self.nodes),
            key_text=self.key_text(),
            compute=compute,
            in_avals=avals,
            donated=self.donated,
            parts=parts_of([plan for plan, _, _ in self.nodes]),
        )

    def key_text(self) -> str:
        lines = [f"{plan.key_text} {ids}->{outs}" for plan, ids, outs in self.nodes]
        avals = [f"{a.shape}{a.dtype}" for a in self.inputs]
        return "\n".join([*lines, f"inputs {self.input_values} {avals}",
                          f"live {self.live_values}"])  # fmt: skip


_programs: dict[Any, Program] = {}


def program_for(key: Any, build: Callable[[], Program]) -> Program:
    """The program of recorded work: what its text says is worked out only for a new key."""
    program = _programs.get(key)
    if program is None:
        program = _programs[key] = build()
    return program


def forget_segments() -> None:
    """Drop the programs of segments seen so far."""
    _programs.clear()


class _Threads(threading.local):
    segment: Segment | None = None


_threads = _Threads()
_all: weakref.WeakSet[Segment] = weakref.WeakSet()


def current_segment() -> Segment:
    """This thread's segment (the capture's own while a whole step is captured)."""
    segment = _threads.segment
    if segment is None:
        segment = Segment()
        segment.on_autograd_worker = on_autograd_worker()
        if not segment.on_autograd_worker:
            run_backward_on_calling_thread()
        _threads.segment = segment
        _all.add(segment)
    return segment


_flushing_graph_tasks: set[int] = set()


def _flush_after_backward() -> None:
    """On a thread of the autograd engine a segment must end with the backward pass, because no
    later op of that thread would run it."""
    task = graph_task()
    if task == -1 or task in _flushing_graph_tasks:
        return
    _flushing_graph_tasks.add(task)

    def finish() -> None:
        _flushing_graph_tasks.discard(task)
        flush_all("autograd_post_backward")

    torch.autograd.Variable._execution_engine.queue_callback(finish)


def set_current_segment(segment: Segment | None) -> Segment | None:
    """Replace this thread's segment; returns the one before."""
    before = _threads.segment
    _threads.segment = segment
    if segment is not None:
        _all.add(segment)
    return before


def flush_all(reason: str) -> None:
    """Run every thread's segment."""
    for segment in list(_all):
        segment.flush(reason)
