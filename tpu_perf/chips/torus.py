"""Which links of a slice's torus close to rings."""

from __future__ import annotations

from collections.abc import Sequence

#: Extents above this come in blocks of as many chips, which optical switches join.
BLOCK = 4


def ring_closes(shape: Sequence[int], axis: int) -> bool:
    """Whether an axis of a slice with so many chips along each is a ring: on 2D generations those
    of 16, on 3D ones all axes of slices made of whole cubes of 4x4x4."""
    if len(shape) == 2:
        return shape[axis] == 16
    return all(extent % BLOCK == 0 for extent in shape)
