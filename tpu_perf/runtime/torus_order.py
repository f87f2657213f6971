"""Which device of a torus stands where in a mesh, so that neighbours of the mesh have links."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tpu_perf.chips.torus import ring_closes

#: How much more an axis weighs than the one before it: the last ones carry most traffic.
_WEIGHT = 8.0


def topology_aware_order(devices: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """The first devices of a mesh of these sizes, in row-major order of the mesh.

    Of several ways to walk the torus that one is taken whose rings along the mesh's axes have the
    fewest hops, the last axes first. Devices without coordinates (a CPU's) stay as they are.
    """
    count = math.prod(sizes)
    chosen = list(devices[:count])
    if len(chosen) < count or count == 1 or not hasattr(chosen[0], "coords"):
        return chosen
    places = [(*map(int, one.coords), int(getattr(one, "core_on_chip", 0))) for one in chosen]
    shape = [len(set(axis)) for axis in zip(*places, strict=True)]
    by_place = dict(zip(places, chosen, strict=True))
    walks = [places, *_walks(places)]
    best = min(walks, key=lambda walk: _hops(walk, sizes, shape))
    return [by_place[place] for place in best]


def _walks(places: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Every order of the torus's axes, straight and turning back at the end of each row, so that
    the next one begins beside it."""
    axes = range(len(places[0]))
    for order in itertools.permutations(axes):
        yield sorted(places, key=lambda place: [place[axis] for axis in order])
        for turning in range(1, len(order)):
            yield sorted(places, key=lambda place: _turned(place, order, turning))


def _turned(place: tuple[int, ...], order: Sequence[int], turning: int) -> list[int]:
    """Sorts a boustrophedon: the last `turning` axes run backwards in every other row."""
    key = [place[axis] for axis in order]
    first = len(order) - turning
    for at in range(first, len(order)):
        if sum(place[axis] for axis in order[first - 1 : at]) % 2:
            key[at] = -key[at]
    return key


def _hops(walk: list[tuple[int, ...]], sizes: Sequence[int], shape: Sequence[int]) -> float:
    """Mean hops between neighbours on the ring of each mesh axis, weighted."""
    total, inner, weight = 0.0, 1, 1.0
    for size in reversed(sizes):
        if size > 1:
            weight /= _WEIGHT
            steps = [
                _distance(walk[at], walk[at - inner * (size - 1) if at // inner % size == size - 1
                                         else at + inner], shape)
                for at in range(len(walk))
            ]  # fmt: skip
            total += weight * sum(steps) / len(steps)
        inner *= size
    return total


def _distance(a: tuple[int, ...], b: tuple[int, ...], shape: Sequence[int]) -> int:
    """Links between two chips; a slice that is one row has no ring."""
    wide = [axis for axis, extent in enumerate(shape[:-1]) if extent > 1]
    flat = [shape[axis] for axis in wide]
    hops = 0
    for number, axis in enumerate(wide):
        apart = abs(a[axis] - b[axis])
        wraps = len(flat) > 1 and ring_closes(flat, number)
        hops += min(apart, shape[axis] - apart) if wraps else apart
    return hops
