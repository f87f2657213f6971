"""Memory of one execution of a module, from XLA's buffer assignment: who holds how much, and when.

What XLA reserves and what is live differ: the temporaries share one block whose size is fixed,
and at no moment need all of it hold values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tpu_perf.errors import HloProblem
from tpu_perf.hlo.module import Instruction, Module
from tpu_perf.hlo.schema import ALLOC, FREE, SHARE_WITH

#: "argument+output" is an argument that the result overwrites (donated); "thread_local" holds the
#: scalars of reduction functions and is never counted.
AllocationKind = Literal[
    "argument", "output", "argument+output", "constant", "temporary", "thread_local"
]
MAIN_MEMORY = 0  # the colour of HBM; on TPUs 1 is VMEM and 5 the host's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A block that XLA reserves for a whole execution, with the values it holds in turn."""

    index: int
    size_bytes: int
    kind: AllocationKind
    memory_space: int
    parameter: int | None  # of the entry computation
    buffers: int  # values assigned to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A value in memory, and the instruction that defines it."""

    buffer: int
    size_bytes: int
    allocation: int
    kind: AllocationKind
    offset_bytes: int  # in its allocation
    instruction: str
    opcode: str
    computation: str
    shape: str
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePoint:
    """Temporaries that are live while an instruction runs which allocates some."""

    instruction: str
    computation: str
    live_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """Bytes of main memory of one execution, and what makes up its peak.

    `argument`, `output`, `alias` (donated: both of these), `constant` and `temporary` are what XLA
    reserves; `peak_temporary` is the most that is live of the temporaries, None where XLA kept no
    trace of its heap. `live` follows the schedule, one point an instruction that allocates:
    between two points memory only shrinks. `at_peak` are the values live at that peak and those
    held throughout, largest first. `elsewhere` are bytes reserved in other memory spaces.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    constant_bytes: int
    temporary_bytes: int
    peak_temporary_bytes: int | None
    elsewhere_bytes: dict[int, int]
    allocations: tuple[Allocation, ...]
    live: tuple[LivePoint, ...]
    at_peak: tuple[Buffer, ...]

    @property
    def reserved_bytes(self) -> int:
        """All main memory that an execution needs, donated arguments counted once."""
        whole = self.argument_bytes + self.output_bytes - self.alias_bytes
        return whole + self.constant_bytes + self.temporary_bytes


def memory_profile(module: Module) -> MemoryProfile | None:
    """The memory of a module; None if it was serialised without its buffer assignment.

    Raises HloProblem if the assignment names buffers or instructions that are not there.
    """
    if module.buffer_assignment is None:
        return None
    try:
        return _profile(module, module.buffer_assignment)
    except KeyError as error:
        raise HloProblem(
            f"the buffer assignment of {module.name!r} is damaged: {error.args[0]} is not there"
        ) from None


def _profile(module: Module, assignment: Any) -> MemoryProfile:
    allocations = tuple(_allocation(one) for one in assignment.buffer_allocations)
    main = [one for one in allocations if one.memory_space == MAIN_MEMORY]
    elsewhere: dict[int, int] = {}
    for one in allocations:
        if one.memory_space != MAIN_MEMORY and one.kind != "thread_local":
            before = elsewhere.get(one.memory_space, 0)
            elsewhere[one.memory_space] = before + one.size_bytes

    def size(*kinds: AllocationKind) -> int:
        return sum(one.size_bytes for one in main if one.kind in kinds)

    buffers = _buffers(module, assignment, {one.index: one for one in main})
    heaps = [_Heap(module, trace, buffers) for trace in assignment.heap_simulator_traces]
    heaps = [heap for heap in heaps if heap.peak_bytes]
    largest = max(heaps, key=lambda heap: heap.peak_bytes, default=None)
    temporary = size("temporary")
    # Heaps lie side by side in memory, so their peaks add up whenever each is reached.
    peak = sum(heap.peak_bytes for heap in heaps) if heaps or not temporary else None
    return MemoryProfile(
        argument_bytes=size("argument", "argument+output"),
        output_bytes=size("output", "argument+output"),
        alias_bytes=size("argument+output"),
        constant_bytes=size("constant"),
        temporary_bytes=temporary,
        peak_temporary_bytes=peak,
        elsewhere_bytes=elsewhere,
        allocations=tuple(sorted(allocations, key=lambda one: -one.size_bytes)),
        live=() if largest is None else tuple(largest.points),
        at_peak=_at_peak(buffers, heaps),
    )


def _allocation(proto: Any) -> Allocation:
    kind: AllocationKind = "temporary"
    if proto.is_thread_local:
        kind = "thread_local"
    elif proto.is_entry_computation_parameter:
        kind = "argument+output" if proto.maybe_live_out else "argument"
    elif proto.maybe_live_out:
        kind = "output"
    elif proto.is_constant:
        kind = "constant"
    return Allocation(
        index=proto.index,
        size_bytes=proto.size,
        kind=kind,
        memory_space=proto.color,
        parameter=proto.parameter_number if proto.is_entry_computation_parameter else None,
        buffers=len(proto.assigned),
    )


def _buffers(
    module: Module, assignment: Any, allocations: dict[int, Allocation]
) -> dict[int, Buffer]:
    """The values in these allocations by id."""
    logical = {one.id: one for one in assignment.logical_buffers}
    by_name = {one.name: one for one in module.by_id.values()}
    found: dict[int, Buffer] = {}
    for proto in assignment.buffer_allocations:
        allocation = allocations.get(proto.index)
        if allocation is None or allocation.kind == "thread_local":
            continue
        for assigned in proto.assigned:
            one = _named(logical, assigned.logical_buffer_id, "buffer")
            definer = _definer(module, by_name, one.defined_at)
            found[one.id] = Buffer(
                buffer=one.id,
                size_bytes=one.size,
                allocation=allocation.index,
                kind=allocation.kind,
                offset_bytes=assigned.offset,
                instruction=definer.name,
                opcode=definer.opcode,
                computation=module.computation_of[definer].name,
                shape=_part(definer, one.defined_at.shape_index),
                positions=definer.positions(),
            )
    return found


def _named(table: dict[int, Any], number: int, what: str) -> Any:
    if number not in table:
        raise KeyError(f"{what} {number}")
    return table[number]


def _definer(module: Module, by_name: dict[str, Instruction], location: Any) -> Instruction:
    """XLA names it by id; older ones by name."""
    if not location.instruction_name:
        definer: Instruction = _named(module.by_id, location.instruction_id, "instruction")
        return definer
    if location.instruction_name not in by_name:
        raise KeyError(f"instruction {location.instruction_name}")
    return by_name[location.instruction_name]


def _part(definer: Instruction, index: Any) -> str:
    """The shape at a place in a tuple."""
    shape = definer.shape
    for number in index:
        if not 0 <= number < len(shape.parts):
            raise KeyError(f"part {list(index)} of {definer.name}")
        shape = shape.parts[number]
    return str(shape)


class _Heap:
    """A heap simulation of XLA, replayed over temporaries.

    A trace's own allocation index is of before XLA renumbered them, so buffers are found by id.
    An event names the instruction that defines its buffer, also when it frees it.
    """

    def __init__(self, module: Module, trace: Any, buffers: dict[int, Buffer]) -> None:
        self.points: list[LivePoint] = []
        self.peak_bytes = 0
        self.at_peak: frozenset[int] = frozenset()
        self._live_bytes = 0
        self._holders: dict[int, int] = {}  # buffer that owns memory -> values in that memory
        self._owner: dict[int, int] = {}  # value -> buffer that owns its memory
        for event in trace.events:
            buffer = buffers.get(event.buffer_id)
            if buffer is not None and buffer.kind == "temporary":
                self._replay(event, buffers)

    def _replay(self, event: Any, buffers: dict[int, Buffer]) -> None:
        number = event.buffer_id
        if event.kind == ALLOC or (
            event.kind == SHARE_WITH and event.share_with_canonical_id not in self._holders
        ):
            self._owner[number] = number
            self._holders[number] = 1
            self._live_bytes += buffers[number].size_bytes
            self._note(event)
        elif event.kind == SHARE_WITH:
            self._owner[number] = event.share_with_canonical_id
            self._holders[event.share_with_canonical_id] += 1
        elif event.kind == FREE and number in self._owner:
            owner = self._owner.pop(number)
            self._holders[owner] -= 1
            if not self._holders[owner]:
                del self._holders[owner]
                self._live_bytes -= buffers[owner].size_bytes

    def _note(self, event: Any) -> None:
        point = LivePoint(
            instruction=event.instruction_name,
            computation=event.computation_name,
            live_bytes=self._live_bytes,
        )
        if self.points and self.points[-1].instruction == point.instruction:
            self.points.pop()  # one instruction with several results: they add up
        self.points.append(point)
        if self._live_bytes > self.peak_bytes:
            self.peak_bytes = self._live_bytes
            self.at_peak = frozenset(self._holders)


def _at_peak(buffers: dict[int, Buffer], heaps: list[_Heap]) -> tuple[Buffer, ...]:
    """Temporaries at the peak, and the largest value of each allocation held throughout."""
    live = {number for heap in heaps for number in heap.at_peak}
    found = [buffers[number] for number in live]
    found += _held(buffers, replayed=bool(heaps))
    return tuple(sorted(found, key=lambda one: (-one.size_bytes, one.buffer)))


def _held(buffers: dict[int, Buffer], *, replayed: bool) -> Iterator[Buffer]:
    """One value for each allocation: the largest, the first defined among equals."""
    largest: dict[int, Buffer] = {}
    for one in sorted(buffers.values(), key=lambda one: one.buffer):
        if one.kind == "temporary" and replayed:
            continue
        before = largest.get(one.allocation)
        if before is None or one.size_bytes > before.size_bytes:
            largest[one.allocation] = one
    yield from largest.values()
