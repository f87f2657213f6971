"""Bytes that an instruction reads and writes: what it touches, not the size of its operands.

As in XLA's cost analysis, what a fusion holds inside never reaches memory. Unlike there, slices
and gathers inside a fusion count what they touch wherever they stand in it, tables of tuple
pointers count nothing, and nothing is read more often than it is long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tpu_perf.hlo.category import ELEMENTWISE
from tpu_perf.hlo.module import Computation, Instruction
from tpu_perf.hlo.shape import Shape
from tpu_perf.hlo.work import MATMUL_CALLS, cost_estimate

#: Constants in a fusion up to this many elements are part of its code
#: (`HloCostAnalysis::immediate_constant_max_elements`).
IMMEDIATE_ELEMENTS = 8
#: Forward pointers, order execution, or run other computations: they move nothing themselves.
#: The end of an asynchronous instruction is free too, since its start holds the cost.
_FREE = """
    parameter constant tuple get-tuple-element bitcast after-all add-dependency domain
    opt-barrier while conditional call copy-done async-update async-done all-gather-done
    all-reduce-done collective-permute-done send-done recv-done"""
MOVES_NOTHING = frozenset(_FREE.split())
#: Custom calls known to read their operands once and write their results once.
PLAIN_CALLS = MATMUL_CALLS | {"TopK"}
PLAIN_CALL_PREFIXES = ("lapack_",)
#: Starts whose result is (operand, result, ...): only the second is written.
_START_OF_PAIR = frozenset({"all-gather-start", "collective-permute-start"})
_SAME_ELEMENTS = frozenset({"bitcast", "reshape", "transpose", "copy", *ELEMENTWISE})
_AT_MOST_AS_MANY = frozenset({"broadcast", "pad", "concatenate", "reverse", "slice"})


@dataclass(slots=True)
class Traffic:
    """Bytes of one execution; None where not known. `elsewhere`: those outside main memory."""

    read: float | None = 0.0
    written: float | None = 0.0
    elsewhere: float | None = 0.0

    def add_read(self, shape: Shape, elements: float | None = None) -> None:
        """Count a read of this many elements of a value, of all by default."""
        assert self.read is not None
        self.read += self._touched(shape, elements)

    def add_write(self, shape: Shape, elements: float | None = None) -> None:
        assert self.written is not None
        self.written += self._touched(shape, elements)

    def _touched(self, shape: Shape, elements: float | None) -> float:
        whole = shape.elements
        share = 1.0 if elements is None or not whole else min(1.0, elements / whole)
        assert self.elsewhere is not None
        self.elsewhere += share * sum(
            leaf.nbytes for leaf in shape.leaves() if leaf.memory_space != 0
        )
        return share * shape.nbytes


def unknown() -> Traffic:
    return Traffic(None, None, None)


@dataclass(frozen=True, slots=True)
class Read:
    """A demand for elements of an operand; `apart` if other readers want other elements."""

    operand: Instruction
    elements: float
    apart: bool = False


def traffic_of(instruction: Instruction) -> Traffic:
    """What one execution reads and writes. Raises IndexError where operands are missing."""
    opcode = instruction.opcode
    if opcode in MOVES_NOTHING or (opcode == "transpose" and _only_relabels(instruction)):
        return Traffic()
    if opcode in ("fusion", "async-start"):
        return _of_computation(instruction)
    if opcode == "custom-call":
        return _of_custom_call(instruction)
    found = Traffic()
    if opcode == "triangular-solve":  # half of the matrix holds zeros that nobody reads
        matrix, right = instruction.operands[:2]
        found.add_read(matrix.shape, matrix.shape.elements / 2)
        found.add_read(right.shape)
    else:
        demands = _Demands()
        demands.add(reads(instruction, instruction.shape.elements, in_place=True))
        for operand, elements in demands.wanted():
            found.add_read(operand.shape, elements)
    if opcode in ("dynamic-update-slice", "scatter"):
        for update in _updates(instruction):
            found.add_write(update.shape)
    elif opcode in _START_OF_PAIR and len(instruction.shape.parts) > 1:
        found.add_write(instruction.shape.parts[1])
    elif opcode in ("copy-start", "recv") and instruction.shape.parts:
        found.add_write(instruction.shape.parts[0])
    elif opcode not in ("send", "outfeed"):
        found.add_write(instruction.shape)
    return found


def _only_relabels(transpose: Instruction) -> bool:
    """Whether a transpose leaves every byte in place, as layouts can make it do."""
    source, result = transpose.operands[0].shape, transpose.shape
    if source.minor_to_major is None or result.minor_to_major is None or source.tiles:
        return False
    permutation = transpose.proto.dimensions
    return tuple(permutation[at] for at in result.minor_to_major) == source.minor_to_major


def _updates(instruction: Instruction) -> tuple[Instruction, ...]:
    """The operands that a dynamic-update-slice or scatter writes into its first ones."""
    if instruction.opcode == "dynamic-update-slice":
        return (instruction.operands[1],)
    return instruction.operands[len(instruction.operands) // 2 + 1 :]


def reads(one: Instruction, elements: float, *, in_place: bool) -> Iterator[Read]:
    """What must be read of its operands to compute this many elements of an instruction.

    `in_place`: a dynamic-update-slice or scatter overwrites its first operand.
    """
    opcode, operands = one.opcode, one.operands
    whole = one.shape.elements
    share = elements / whole if whole else 0.0
    if opcode in _SAME_ELEMENTS:
        for operand in operands:
            # A scalar predicate or bound is needed whole; the others element by element.
            size = operand.shape.elements
            yield Read(operand, size * share if size == whole else size)
    elif opcode in _AT_MOST_AS_MANY:
        for operand in operands:
            wanted = min(elements, operand.shape.elements)
            yield Read(operand, wanted, apart=opcode == "slice")
    elif opcode in ("dynamic-slice", "gather"):
        source = operands[0]
        yield Read(source, min(elements, source.shape.elements), apart=True)
        yield from (Read(index, index.shape.elements) for index in operands[1:])
    elif opcode in ("dynamic-update-slice", "scatter"):
        yield from _reads_of_update(one, elements, in_place)
    elif opcode == "get-tuple-element":
        yield Read(operands[0], elements, apart=True)
    elif opcode == "fusion":
        for operand, wanted in zip(operands, parameter_demands(one.called[0]), strict=True):
            yield Read(operand, wanted)
    elif opcode == "reduce":
        for operand in operands:
            yield Read(operand, operand.shape.elements * share)
    else:
        yield from (Read(operand, operand.shape.elements) for operand in operands)


def _reads_of_update(one: Instruction, elements: float, in_place: bool) -> Iterator[Read]:
    updates = _updates(one)
    targets = one.operands[: len(updates)]
    for target, update in zip(targets, updates, strict=True):
        size = update.shape.elements
        touched = size if one.opcode == "scatter" else 0  # a scatter combines old and new
        yield Read(target, touched if in_place else elements)
    yield from (Read(operand, operand.shape.elements) for operand in one.operands[len(updates) :])


class _Demands:
    """Elements wanted of each instruction: readers share what they read, except slices."""

    def __init__(self) -> None:
        self._shared: dict[Instruction, float] = {}
        self._apart: dict[Instruction, float] = {}

    def add(self, demands: Iterable[Read]) -> None:
        for one in demands:
            if one.apart:
                self._apart[one.operand] = self._apart.get(one.operand, 0.0) + one.elements
            else:
                before = self._shared.get(one.operand, 0.0)
                self._shared[one.operand] = max(before, one.elements)

    def of(self, instruction: Instruction) -> float:
        wanted = self._shared.get(instruction, 0.0) + self._apart.get(instruction, 0.0)
        return min(wanted, float(instruction.shape.elements))

    def wanted(self) -> Iterator[tuple[Instruction, float]]:
        for instruction in self._shared | self._apart:
            yield instruction, self.of(instruction)


def _behind_bitcasts(instruction: Instruction) -> Instruction:
    while instruction.opcode == "bitcast" and instruction.operands:
        instruction = instruction.operands[0]
    return instruction


def _outputs(root: Instruction) -> tuple[Instruction, ...]:
    return root.operands if root.opcode == "tuple" else (root,)


def _updated_in_place(output: Instruction) -> Instruction | None:
    """The update that an output of a fusion is, where it overwrites the fusion's operand."""
    one = _behind_bitcasts(output)
    if one.opcode not in ("dynamic-update-slice", "scatter") or one.shape.is_tuple:
        return None
    return one if _behind_bitcasts(one.operands[0]).opcode == "parameter" else None


def _demands(computation: Computation) -> _Demands:
    """Elements wanted of every instruction to compute the whole root."""
    demands = _Demands()
    outputs = _outputs(computation.root)
    in_place = {_updated_in_place(output) for output in outputs}
    demands.add(Read(output, output.shape.elements) for output in outputs)
    for one in reversed(computation.instructions):
        if one is not computation.root or len(outputs) == 1:
            demands.add(reads(one, demands.of(one), in_place=one in in_place))
    return demands


def parameter_demands(computation: Computation) -> list[float]:
    """Elements that computing the root reads of each parameter."""
    demands = _demands(computation)
    return [demands.of(parameter) for parameter in computation.parameters()]


def _of_computation(instruction: Instruction) -> Traffic:
    """A fusion, or the computation that an asynchronous start wraps."""
    computation = instruction.called[0]
    demands, found = _demands(computation), Traffic()
    parameters = computation.parameters()
    for parameter, operand in zip(parameters, instruction.operands, strict=True):
        found.add_read(operand.shape, demands.of(parameter))
    for one in computation.instructions:
        if one.opcode == "constant" and one.shape.elements > IMMEDIATE_ELEMENTS:
            found.add_read(one.shape)
    for output in _outputs(computation.root):
        update = _updated_in_place(output)
        for written in (output,) if update is None else _updates(update):
            found.add_write(written.shape)
    return found


def _of_custom_call(call: Instruction) -> Traffic:
    target = call.proto.custom_call_target
    if target == "AllocateBuffer":
        return Traffic()
    found = Traffic()
    found.add_write(call.shape)
    if target in PLAIN_CALLS or target.startswith(PLAIN_CALL_PREFIXES):
        for operand in dict.fromkeys(call.operands):
            found.add_read(operand.shape)
        return found
    estimate = cost_estimate(call) or {}
    total = estimate.get("bytes_accessed")
    if not isinstance(total, int | float) or found.written is None or total < found.written:
        return unknown()
    return Traffic(total - found.written, found.written, None)
