"""Which partitions a collective joins: the three ways in which XLA writes device groups."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tpu_perf.hlo.module import Instruction

#: Collectives, bare or as the start of an asynchronous pair.
COLLECTIVES = frozenset(
    (
        *("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
        *("collective-permute", "collective-broadcast"),
    )
)


def collective_kind(instruction: Instruction) -> str | None:
    """`all-gather` and so on, for an instruction or the start of an asynchronous one; None if it
    is no collective."""
    kind = instruction.opcode.removesuffix("-start")
    return kind if kind in COLLECTIVES else None


def device_groups(instruction: Instruction, partitions: int) -> list[tuple[int, ...]]:
    """The groups of partitions that exchange data, one with all of them where XLA names none.

    Of a collective-permute, each (source, target) pair. Raises ValueError where a list does not
    fit the number of partitions.
    """
    proto = instruction.proto
    if proto.source_target_pairs:
        return [(one.source, one.target) for one in proto.source_target_pairs]
    listed = proto.replica_groups or proto.collective_device_list.replica_groups
    if listed:
        return [tuple(one.replica_ids) for one in listed]
    for iota in (proto.iota_replica_group_list,
                 proto.collective_device_list.iota_replica_group_list):  # fmt: skip
        if not iota.num_replica_groups:
            continue
        ids = np.arange(math.prod(iota.iota_reshape_dims)).reshape(tuple(iota.iota_reshape_dims))
        if iota.iota_transpose_perm:
            ids = ids.transpose(tuple(iota.iota_transpose_perm))
        return _rows(ids.reshape(iota.num_replica_groups, iota.num_devices_per_group))
    axes = proto.mesh_axes_replica_group_list
    if axes.axes:
        return _mesh_groups(axes)
    return [tuple(range(partitions))]


def _mesh_groups(listed: Any) -> list[tuple[int, ...]]:
    """Groups that vary along some axes of a mesh; an axis may be split in (pre, size, post)."""
    sizes: list[int] = []
    varying: list[int] = []
    chosen = {one.mesh_axis_index: one for one in listed.axes}
    for number, axis in enumerate(listed.mesh.axes):
        one = chosen.get(number)
        if one is None:
            sizes.append(axis.size)
        elif one.HasField("sub_axis_info"):
            before, size = max(1, one.sub_axis_info.pre_size), one.sub_axis_info.size
            varying.append(len(sizes) + 1)
            sizes += [before, size, axis.size // (before * size)]
        else:
            varying.append(len(sizes))
            sizes.append(axis.size)
    total = math.prod(sizes)
    ids = np.array(listed.mesh.device_ids or range(total))
    order = listed.mesh.iota
    if order.reshape_dims:
        ids = ids.reshape(tuple(order.reshape_dims)).transpose(tuple(order.transpose_perm) or None)
    ids = ids.reshape(sizes)
    kept = [number for number in range(len(sizes)) if number not in varying]
    length = math.prod(sizes[number] for number in varying)
    return _rows(ids.transpose(kept + varying).reshape(total // length, length))


def _rows(ids: Any) -> list[tuple[int, ...]]:
    return [tuple(int(one) for one in row) for row in ids]
