"""Devices of a torus in the order of a mesh: neighbours of its last axis are one link apart."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tpu_perf.runtime.torus_order import topology_aware_order


def torus(*shape: int) -> list[Any]:
    """Chips host by host, 2x2 each, as libtpu lists them."""
    x, y, z = (*shape, 1)[:3]
    found = []
    for hz, hy, hx in itertools.product(range(z), range((y + 1) // 2), range((x + 1) // 2)):
        for dy, dx in itertools.product(range(min(2, y)), range(min(2, x))):
            found.append(SimpleNamespace(coords=(2 * hx + dx, 2 * hy + dy, hz), core_on_chip=0))
    return found


def gaps(order: list[Any], sizes: tuple[int, ...], axis: int) -> set[int]:
    """Hops between neighbours along one axis of the mesh, without the links that close rings."""
    grid = np.array([one.coords for one in order]).reshape(*sizes, 3)
    ahead = np.diff(grid, axis=axis)
    return set(np.abs(ahead).sum(-1).ravel().tolist())


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [((2, 4), (2, 4)), ((4, 4), (4, 4)), ((4, 4), (2, 8)), ((2, 4), (8,)), ((4, 4, 4), (4, 16)),
     ((8, 8), (8, 8)), ((4, 8), (4, 8))],
)  # fmt: skip
def test_neighbours_on_the_last_axis_have_a_link(
    shape: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    devices = torus(*shape)
    order = topology_aware_order(devices, sizes)
    assert sorted(map(id, order)) == sorted(map(id, devices))
    assert gaps(order, sizes, len(sizes) - 1) == {1}


def test_both_axes_of_a_mesh_like_the_torus_have_links() -> None:
    order = topology_aware_order(torus(4, 4), (4, 4))
    assert gaps(order, (4, 4), 0) == {1}


def test_a_ring_over_a_block_closes() -> None:
    order = topology_aware_order(torus(2, 4), (8,))
    first, last = order[0].coords, order[-1].coords
    assert sum(abs(a - b) for a, b in zip(first, last, strict=True)) == 1


def test_devices_without_coordinates_stay_as_they_are() -> None:
    devices = [SimpleNamespace(id=n) for n in range(8)]
    assert topology_aware_order(devices, (2, 4)) == devices
