"""Gives the ops of steps that were recorded without places those of a step that has them.

Timed steps are recorded without looking at the stack, because that costs a microsecond or two an
op. A step of the same program does the same ops in the same order, so what is known of one that
was looked into holds for the others: for all of it where the ops are the same, else for the ops
before the first difference and after the last.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

#: By which values the events of two steps are compared.
COMPARED: Mapping[str, str] = {"dispatch": "op", "memory": "delta_bytes"}
_TIME = {"dispatch": "t_start_ns", "memory": "t_ns"}

Integers = npt.NDArray[np.int64]


def with_places(kind: str, events: pd.DataFrame) -> pd.DataFrame:
    """Dispatch or memory events with `site` filled in where it can be known. Of memory events
    only allocations have sites."""
    known_already = events["site"].to_numpy(np.int64) >= 0
    wanted = (events["delta_bytes"] > 0).to_numpy() if kind == "memory" else True
    if not known_already.any() or (known_already | ~np.asarray(wanted)).all():
        return events
    sites = events["site"].to_numpy(np.int64).copy()
    sequences = _sequences(kind, events)
    known = {step: rows for step, rows in sequences.items() if (sites[rows] >= 0).any()}
    values = _values(kind, events)
    for step, rows in sequences.items():
        if step in known:
            continue
        best = _most_alike(values[rows], {s: values[r] for s, r in known.items()})
        if best is None:
            continue
        like, before, after = best
        theirs = known[like]
        sites[rows[:before]] = sites[theirs[:before]]
        if after:
            sites[rows[-after:]] = sites[theirs[-after:]]
    return events.assign(site=sites)


def _values(kind: str, events: pd.DataFrame) -> Integers:
    column = events[COMPARED[kind]]
    if kind == "dispatch":
        return np.asarray(column.astype("category").cat.codes, np.int64)
    return column.to_numpy(np.int64)


def _sequences(kind: str, events: pd.DataFrame) -> dict[int, Integers]:
    """The rows of each step in order of time; events outside steps have no counterpart."""
    chosen = (events["step"] >= 0).to_numpy()
    if kind == "memory":
        chosen = chosen & (events["delta_bytes"] > 0).to_numpy()
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(events[_TIME[kind]].to_numpy(np.int64)[rows], kind="stable")]
    steps = events["step"].to_numpy(np.int64)[rows]
    return {int(step): rows[steps == step] for step in np.unique(steps)}


def _most_alike(own: Integers, known: Mapping[int, Integers]) -> tuple[int, int, int] | None:
    """The step whose events agree with most of ours: (step, how many at the start, at the end).
    Of equals the last, which is the warmest."""
    best: tuple[int, int, int] | None = None
    for step, theirs in known.items():
        shorter = min(len(own), len(theirs))
        before = _agreeing(own[:shorter] == theirs[:shorter])
        after = 0
        if before < shorter:
            after = _agreeing(own[len(own) - shorter :][::-1] == theirs[-shorter:][::-1])
            after = min(after, shorter - before)
        if before + after and (best is None or before + after >= best[1] + best[2]):
            best = step, before, after
    return best


def _agreeing(same: npt.NDArray[np.bool_]) -> int:
    """How many are true before the first that is not."""
    return len(same) if same.all() else int(same.argmin())
