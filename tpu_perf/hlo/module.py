"""A compiled HLO module: computations, their instructions in scheduled order, and who uses whom."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from google.protobuf.message import DecodeError

from tpu_perf.errors import HloProblem
from tpu_perf.hlo.schema import HloModuleProto, HloProto
from tpu_perf.hlo.shape import Shape, UnreadableShape, read_shape

#: A part of an op_name that names the op of the recorded program: "jit(f)/op12/dot_general".
_POSITION = re.compile(r"(?:^|[/;])op(\d+)(?=[/;]|$)")


@dataclass(eq=False, slots=True)
class Instruction:
    """One HLO instruction; `proto` holds whatever has no field here."""

    proto: Any
    name: str
    opcode: str
    shape: Shape
    operands: tuple[Instruction, ...] = ()
    users: list[Instruction] = field(default_factory=list)
    called: tuple[Computation, ...] = ()

    @property
    def op_name(self) -> str:
        """The path that the frontend gave it: "jit(f)/op3/add"; "" where it gave none."""
        return str(self.proto.metadata.op_name)

    @property
    def fusion_kind(self) -> str:
        """kLoop | kInput | kOutput | kCustom; "" if it is no fusion."""
        return str(self.proto.fusion_kind) if self.opcode == "fusion" else ""

    @property
    def backend_config(self) -> dict[str, Any]:
        """What the backend noted, where that is a JSON object; else empty."""
        try:
            config = json.loads(self.proto.backend_config or b"{}")
        except (ValueError, RecursionError):
            return {}
        return config if isinstance(config, dict) else {}

    def own_positions(self) -> set[int]:
        """Ops of the recorded program that its own op_name names."""
        return {int(number) for number in _POSITION.findall(self.op_name)}

    def positions(self) -> tuple[int, ...]:
        """Ops of the recorded program that it computes, sorted; a fusion's are those inside it.

        The scalar functions of reductions and sorts are left out: XLA shares equal ones, so they
        name the op of whichever came first.
        """
        found = self.own_positions()
        for inner in self.fused():
            found |= inner.own_positions()
        return tuple(sorted(found))

    def fused(self) -> Iterator[Instruction]:
        """Instructions inside a fusion, those of fusions within it included."""
        if self.opcode == "fusion":
            for computation in self.called:
                for inner in computation.instructions:
                    yield inner
                    yield from inner.fused()


@dataclass(eq=False, slots=True)
class Computation:
    """A list of instructions: in scheduled order where there is one, operands first in any case."""

    name: str
    instructions: list[Instruction]
    root: Instruction
    is_fusion: bool
    scheduled: bool

    def parameters(self) -> list[Instruction]:
        """Its parameters by number."""
        found = [one for one in self.instructions if one.opcode == "parameter"]
        return sorted(found, key=lambda one: int(one.proto.parameter_number))


@dataclass(eq=False)
class Module:
    """A module as read; `proto` and `buffer_assignment` are the messages it came from."""

    name: str
    computations: list[Computation]  # callees before their callers
    entry: Computation
    proto: Any
    buffer_assignment: Any | None

    @property
    def is_scheduled(self) -> bool:
        return self.entry.scheduled

    @cached_property
    def by_id(self) -> dict[int, Instruction]:
        """Instructions by the id that buffer assignments name them by."""
        return {
            one.proto.id: one
            for computation in self.computations
            for one in computation.instructions
        }

    @cached_property
    def computation_of(self) -> dict[Instruction, Computation]:
        return {
            one: computation
            for computation in self.computations
            for one in computation.instructions
        }

    def source(self, instruction: Instruction) -> tuple[str, int] | None:
        """(file, line) that the frontend gave an instruction, from its metadata or stack frame."""
        metadata = instruction.proto.metadata
        if metadata.source_file:
            return str(metadata.source_file), int(metadata.source_line)
        index = self.proto.stack_frame_index
        try:  # ids count from 1; 0 means none
            frame = _at(index.stack_frames, metadata.stack_frame_id)
            location = _at(index.file_locations, frame.file_location_id)
            return str(_at(index.file_names, location.file_name_id)), int(location.line)
        except IndexError:
            return None


def _at(entries: Any, one_based: int) -> Any:
    if one_based < 1:
        raise IndexError(one_based)
    return entries[one_based - 1]


def read_module(data: bytes) -> Module:
    """Read a serialized HloProto, or a bare HloModuleProto.

    Raises HloProblem if the bytes are neither, or hold references that lead nowhere.
    """
    proto, buffers = _parse(data)
    try:
        return _build(proto, buffers)
    except UnreadableShape as error:
        raise HloProblem(f"the HLO module {proto.name!r} is damaged: a shape has {error}") from None


def _parse(data: bytes) -> tuple[Any, Any | None]:
    """(HloModuleProto, BufferAssignmentProto or None). Both kinds begin with field 1."""
    try:
        whole = HloProto.FromString(data)
        if whole.hlo_module.computations:
            buffers = whole.buffer_assignment if whole.HasField("buffer_assignment") else None
            return whole.hlo_module, buffers
    except DecodeError:
        pass  # a bare module: its first field is a name, which seldom parses as a message
    try:
        bare = HloModuleProto.FromString(data)
    except DecodeError:
        bare = None
    if bare is None or not bare.computations:
        raise HloProblem(
            f"{len(data)} bytes are not an HLO module: damaged, cut short, or of another kind",
            hint="an HloProto or HloModuleProto was expected, uncompressed",
        )
    return bare, None


def _build(proto: Any, buffers: Any | None) -> Module:
    damaged = f"the HLO module {proto.name!r} is damaged"
    computations: dict[int, Computation] = {}
    for computation_proto in proto.computations:
        where = f"{damaged}: computation {computation_proto.name!r}"
        instructions = _instructions(computation_proto, computations, where)
        if computation_proto.root_id not in instructions:
            raise HloProblem(f"{where} lacks its root")
        order, scheduled = _order(proto, computation_proto, instructions, where)
        if computation_proto.id in computations:
            raise HloProblem(f"{where} has the id of another")
        computations[computation_proto.id] = Computation(
            name=computation_proto.name,
            instructions=order,
            root=instructions[computation_proto.root_id],
            is_fusion=computation_proto.is_fusion_computation,
            scheduled=scheduled,
        )
    entry = computations.get(proto.entry_computation_id)
    if entry is None:
        raise HloProblem(f"{damaged}: it lacks its entry computation")
    return Module(proto.name, list(computations.values()), entry, proto, buffers)


def _instructions(
    proto: Any, computations: dict[int, Computation], where: str
) -> dict[int, Instruction]:
    """Instructions by id, linked to their operands; callees and operands must come before."""
    found: dict[int, Instruction] = {}
    for one in proto.instructions:
        if one.id in found:
            raise HloProblem(f"{where}: {one.name!r} has the id of another instruction")
        try:
            operands = tuple(found[number] for number in one.operand_ids)
            called = tuple(computations[number] for number in one.called_computation_ids)
        except KeyError:
            raise HloProblem(f"{where}: {one.name!r} refers to what is not there") from None
        instruction = Instruction(
            one, one.name, one.opcode, read_shape(one.shape), operands, called=called
        )
        for operand in dict.fromkeys(operands):
            operand.users.append(instruction)
        found[one.id] = instruction
    return found


def _order(
    module: Any, computation: Any, instructions: dict[int, Instruction], where: str
) -> tuple[list[Instruction], bool]:
    """Instructions in scheduled order, and whether there was a schedule."""
    if computation.id not in module.schedule.sequences:
        return list(instructions.values()), False
    sequence = module.schedule.sequences[computation.id].instruction_ids
    if sorted(sequence) != sorted(instructions):
        raise HloProblem(f"{where} has a schedule of other instructions than its own")
    return [instructions[number] for number in sequence], True
