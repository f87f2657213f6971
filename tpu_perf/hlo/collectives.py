"""The collectives of a compiled program over a mesh: what each moves, along which axes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tpu_perf.hlo.cost import executions
from tpu_perf.hlo.device_groups import collective_kind, device_groups
from tpu_perf.hlo.module import Instruction, Module
from tpu_perf.hlo.shape import Shape

#: What a collective moves. `scalars` are losses, norms and their like.
Role = Literal["weights", "gradients", "activations", "scalars"]

#: In an op_name: the parameter that is brought to where it is used, and the gradient that is
#: brought to its parameter's place.
USE_SCOPE, GRADIENT_SCOPE = "use:", "gradient:"
#: XLA for TPU hides a reduce-scatter in a fusion that calls a computation of this name.
_FUSED_REDUCE_SCATTER = "all-reduce-scatter"
_SCALAR_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One row of collectives.parquet (`record.details`), without the program.

    `nbytes` is the size of the whole array that a group of devices gathers, sums or exchanges;
    `sent_bytes` what each device sends for it by the ring algorithm. `axes` are the mesh axes that
    the devices of a group differ in, joined by "+"; "?" where the groups follow no axis.
    `tensor` is the parameter it is about, "" where that cannot be told. `done` is the instruction
    that waits for it, "" where it is itself waited for. `trip_count` is None where it is not known
    how often a loop around it runs.
    """

    instruction: str
    kind: str
    axes: str
    group_size: int
    nbytes: float
    sent_bytes: float
    role: Role
    tensor: str
    done: str
    trip_count: float | None

    def row(self, program: int) -> tuple[Any, ...]:
        """Its values in the order of COLLECTIVE_COLUMNS."""
        return (program, self.instruction, self.kind, self.axes, self.group_size, self.nbytes,
                self.sent_bytes, self.role, self.tensor, self.done, self.trip_count)  # fmt: skip


def ring_bytes(kind: str, nbytes: float, devices: int) -> float:
    """Bytes that each of so many devices sends over a ring for an array of `nbytes` in all."""
    if devices <= 1:
        return 0.0
    if kind in ("collective-permute", "collective-broadcast"):
        return nbytes
    once = nbytes * (devices - 1) / devices
    if kind in ("all-to-all", "ragged-all-to-all"):
        return once / devices  # each device holds and sends its part of the whole
    return 2 * once if kind == "all-reduce" else once


def collectives(
    module: Module,
    mesh: Mapping[str, int],
    parameters: Mapping[str, Sequence[int]],
    batch_axes: Collection[str] = (),
) -> list[Collective]:
    """Those that the program runs, in scheduled order. `parameters` are names and shapes of what
    is trained; `batch_axes` the axes that split the batch, along which gradients are summed.

    Raises ValueError where device groups do not fit the mesh.
    """
    partitions = math.prod(mesh.values())
    shapes = {tuple(sorted(shape)) for shape in parameters.values()}
    counts = executions(module)
    found = []
    for computation in module.computations:
        times = counts[computation]
        if times == 0.0 or computation.is_fusion:
            continue
        for one, inner, kind in _collectives_of(computation.instructions):
            groups = device_groups(inner, partitions)
            axes = _axes(kind, groups, mesh)
            size = max(map(len, groups), default=1)
            nbytes = _whole_bytes(inner, kind, size)
            role, tensor = _role(inner, kind, axes, nbytes, shapes, mesh, batch_axes)
            found.append(
                Collective(
                    instruction=one.name, kind=kind, axes="+".join(axes) or "?", group_size=size,
                    nbytes=nbytes, sent_bytes=ring_bytes(kind, nbytes, size), role=role,
                    tensor=tensor, done=_done(one), trip_count=times,
                )
            )  # fmt: skip
    return found


def _collectives_of(
    instructions: Sequence[Instruction],
) -> Iterator[tuple[Instruction, Instruction, str]]:
    """(what is scheduled, the collective in it, its kind)."""
    for one in instructions:
        kind = collective_kind(one)
        if kind is not None:
            yield one, one, kind
            continue
        if one.opcode == "async-start":
            wrapped = [i for c in one.called for i in c.instructions if collective_kind(i)]
        elif one.opcode == "fusion":
            wrapped = [inner for inner in one.fused() if collective_kind(inner)]
        else:
            continue
        scatters = any(c.name.startswith(_FUSED_REDUCE_SCATTER) for c in one.called)
        for inner in wrapped:
            kind = collective_kind(inner)
            assert kind is not None
            yield one, inner, "reduce-scatter" if scatters and kind == "all-reduce" else kind


def _done(one: Instruction) -> str:
    """The instruction that waits for an asynchronous one."""
    if not one.opcode.endswith("-start"):
        return ""
    return next((user.name for user in one.users if user.opcode.endswith("-done")), "")


def _axes(kind: str, groups: Sequence[tuple[int, ...]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which the members of every group differ, and all of those; empty where
    the groups are none of the mesh's."""
    names, sizes = tuple(mesh), tuple(mesh.values())
    places = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1)
    varying: set[int] = set()
    for group in groups:
        spread = places[list(group)]
        varying |= {axis for axis in range(len(sizes)) if len(set(spread[:, axis])) > 1}
    whole = math.prod(sizes[axis] for axis in varying)
    if kind != "collective-permute" and any(len(group) != whole for group in groups):
        return ()
    return tuple(names[axis] for axis in sorted(varying))


def _whole_bytes(one: Instruction, kind: str, devices: int) -> float:
    """Bytes of the whole array, by what the devices of a group hold of it together or alike."""
    result = one.shape
    if one.opcode.endswith("-start") and kind != "all-reduce" and len(result.parts) > 1:
        result = result.parts[1]
    given = float(sum(operand.shape.nbytes for operand in one.operands))
    if kind == "all-to-all":
        return given * devices
    if kind == "collective-permute":
        return given
    return max(given, float(result.nbytes))


def _role(
    one: Instruction, kind: str, axes: Sequence[str], nbytes: float,
    shapes: Collection[tuple[int, ...]], mesh: Mapping[str, int], batch_axes: Collection[str],
) -> tuple[Role, str]:  # fmt: skip
    if nbytes <= _SCALAR_BYTES:
        return "scalars", ""
    for part in one.op_name.split("/"):
        for scope, role in ((USE_SCOPE, "weights"), (GRADIENT_SCOPE, "gradients")):
            if part.startswith(scope):
                return role, part.removeprefix(scope)  # type: ignore[return-value]
    sums = kind in ("all-reduce", "reduce-scatter")
    if sums and axes and set(axes) <= set(batch_axes):
        parts = [shape for operand in one.operands for shape in operand.shape.leaves()]
        if all(_is_part_of(shape, shapes, mesh) for shape in parts if shape.nbytes > _SCALAR_BYTES):
            return "gradients", ""
    return "activations", ""


def _is_part_of(shape: Shape, wholes: Collection[tuple[int, ...]], mesh: Mapping[str, int]) -> bool:
    """Whether an array may be a parameter, or what a device has of one: axes in any order, each
    divided by axes of the mesh. A flattened one counts by its elements."""
    dims = tuple(sorted(d for d in shape.dimensions if d > 1))
    parts = {math.prod(c) for c in _subsets(tuple(mesh.values()))}
    for whole in wholes:
        ratio, rest = divmod(math.prod(whole), max(1, math.prod(dims)))
        if rest or ratio not in parts:
            continue
        if len(dims) == 1 or _divides(dims, tuple(d for d in whole if d > 1)):
            return True
    return False


def _divides(dims: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether each of `dims` can be paired with one of `whole` that it divides."""
    if not dims:
        return not whole
    return any(
        size % dims[0] == 0 and _divides(dims[1:], (*whole[:i], *whole[i + 1 :]))
        for i, size in enumerate(whole)
    )


def _subsets(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not sizes:
        yield (1,)
        return
    for rest in _subsets(sizes[1:]):
        yield rest
        yield (sizes[0], *rest)
