"""Mistakes in what a rung says of its mesh: strategies, axes, placements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpu_perf.config.catalogue import Catalogue
from tpu_perf.config.problems import Path, did_you_mean
from tpu_perf.config.yaml_source import Document

_KEYS = ("strategy", "mesh", "placements", "gather_again", "program")


def check_sharding(document: Document, catalogue: Catalogue) -> None:
    """Tell what the types alone do not: which rungs take a mesh, and which axes go together."""
    entries = document.data.get("rungs")
    for index, entry in enumerate(entries if isinstance(entries, list) else []):
        rung = entry.get("rung", entry.get("name")) if isinstance(entry, dict) else entry
        given = entry if isinstance(entry, dict) else {}
        at: Path = ("rungs", index)
        if rung not in catalogue.placed_rungs:
            for key in _KEYS:
                if key in given:
                    document.complain(
                        (*at, key), f"only the rung {' or '.join(catalogue.placed_rungs)} takes it"
                    )
            continue
        for key in ("strategy", "mesh"):
            if given.get(key) is None:
                what = _choices(catalogue) if key == "strategy" else "such as {data: 8}"
                document.complain(at, f"the rung {rung} needs a {key}: {what}")
        mesh = given.get("mesh")
        if isinstance(mesh, dict):
            _check_axes(document, catalogue, given.get("strategy"), mesh, at)
            _check_placements(document, given.get("placements"), mesh, at)


def _choices(catalogue: Catalogue) -> str:
    return "one of " + ", ".join(catalogue.strategies)


def _check_axes(
    document: Document, catalogue: Catalogue, strategy: Any, mesh: Mapping[str, Any], at: Path
) -> None:
    axes = catalogue.strategies.get(strategy) if isinstance(strategy, str) else None
    if axes is None:
        return
    known = (*axes.required, *axes.optional)
    for name in mesh:
        if name not in known:
            document.complain(
                (*at, "mesh", name),
                f"the strategy {strategy} has no such axis{did_you_mean(name, known)}",
            )
    for name in axes.required:
        if name not in mesh:
            document.complain((*at, "mesh"), f"the strategy {strategy} needs the axis {name}")


def _check_placements(
    document: Document, placements: Any, mesh: Mapping[str, Any], at: Path
) -> None:
    for pattern, dims in placements.items() if isinstance(placements, dict) else ():
        used: set[str] = set()
        for axes in dims if isinstance(dims, list) else ():
            for axis in axes if isinstance(axes, list) else [axes]:
                place = (*at, "placements", pattern)
                if isinstance(axis, str) and axis not in mesh:
                    document.complain(
                        place, f"the mesh has no axis {axis!r}{did_you_mean(axis, mesh)}"
                    )
                elif isinstance(axis, str) and axis in used:
                    document.complain(place, f"the axis {axis!r} splits two dimensions")
                used.add(str(axis))
