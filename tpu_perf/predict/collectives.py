"""How long a collective takes: bytes through the links it can use, per phase, plus a latency.

An axis of the torus that a group spans gives it one link, two where the axis closes to a ring.
Read off two public measurements (all-gather of a tpu7x 2x2x1, all-reduce of a v6e-256); for other
generations and slices it is an extrapolation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tpu_perf.hlo.device_groups import collective_kind, device_groups
from tpu_perf.hlo.module import Instruction
from tpu_perf.hlo.shape import Shape
from tpu_perf.predict.targets import Target

#: Gathering is one pass of the data around the torus; reducing to all is two.
_PHASES = {"all-reduce": 2}
#: All-reduce between two slices of a v6e-256, bytes of a device over the data-centre network.
DCN_BYTES_PER_S = 4.1e9
_HOP_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """`queue` is the network that carries it: ici, or dcn between slices. Permutes towards lower
    partitions go "ici back": links carry both ways at once."""

    seconds: float
    queue: Literal["ici", "ici back", "dcn"]
    bytes_sent: float
    devices: int


def collective_time(
    collective: Instruction, target: Target, partitions: int, order: Sequence[int] = (),
    kind: str | None = None,
) -> CollectiveTime:  # fmt: skip
    """The time of a collective (or the start of an asynchronous one) by itself.

    `order` are the positions of the partitions' devices, libtpu's order if empty; `kind` stands
    for the opcode where a fusion makes something else of it.
    """
    kind = kind or collective_kind(collective)
    groups = device_groups(collective, partitions)
    group = max(groups, key=len)
    places = [target.coordinates(order[at] if order else at) for at in group]
    nbytes = _full_bytes(collective, kind)
    if kind == "collective-permute":
        pairs = [[target.coordinates(order[at] if order else at) for at in pair] for pair in groups]
        back = sum(target_at < source for source, target_at in groups) > len(groups) / 2
        return _permute(nbytes, pairs, target, back=back)
    devices = len(group)
    sent = nbytes * (devices - 1) / devices
    if kind == "all-to-all":
        sent *= max(1.0, max(_extents(places, target)) / 4)  # data crosses other chips' links
    phases = _PHASES.get(kind or "", 1)
    generation = target.generation
    if len({one[0] for one in places}) > 1:
        seconds = phases * sent / DCN_BYTES_PER_S
        return CollectiveTime(seconds=seconds, queue="dcn", bytes_sent=sent, devices=devices)
    rate = _links(places, target) * generation.ici_bytes_per_s * generation.ici_efficiency
    # Where each core of a chip is in a group of its own, both groups share the chip's links.
    alone = len({one[1] for one in places}) == 1
    sharing = generation.chip.devices_per_chip if alone else 1
    seconds = phases * (sharing * sent / rate + generation.ici_latency_s) if devices > 1 else 0.0
    return CollectiveTime(seconds=seconds, queue="ici", bytes_sent=phases * sent, devices=devices)


def _permute(
    nbytes: float, pairs: Iterable[Sequence[tuple[int, ...]]], target: Target, *, back: bool
) -> CollectiveTime:
    generation = target.generation
    if any(a[0] != b[0] for a, b in pairs):
        return CollectiveTime(
            seconds=nbytes / DCN_BYTES_PER_S, queue="dcn", bytes_sent=nbytes, devices=2
        )
    seconds = nbytes / generation.ici_bytes_per_s + _HOP_S
    queue: Literal["ici", "ici back"] = "ici back" if back else "ici"
    return CollectiveTime(seconds=seconds, queue=queue, bytes_sent=nbytes, devices=2)


def _full_bytes(collective: Instruction, kind: str | None) -> float:
    """Bytes of the whole array, the larger of what goes in and what comes out."""
    result: Shape = collective.shape
    if collective.opcode.endswith("-start") and len(result.parts) > 1:
        result = result.parts[1]
    operands = sum(one.shape.nbytes for one in collective.operands)
    return float(operands if kind == "collective-permute" else max(operands, result.nbytes))


def _extents(places: Sequence[tuple[int, ...]], target: Target) -> list[int]:
    """How many different coordinates the group has along each axis."""
    return [len({one[2 + axis] for one in places}) for axis in range(len(target.shape))]


def _links(places: Sequence[tuple[int, ...]], target: Target) -> int:
    """Links that leave a chip towards others of its group; at least one."""
    found = 0
    for axis, extent in enumerate(_extents(places, target)):
        if extent > 1:
            ring = extent == target.shape[axis] and extent > 2 and target.wraps(axis)
            found += 2 if ring else 1
    return max(1, found)
