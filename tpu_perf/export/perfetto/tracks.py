"""What a trace is made of before it is encoded: tracks of slices, and counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Nanoseconds = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Body:
    """What a slice shows beside its times. `category` is the kind of event it stands for."""

    category: str
    name: str
    args: tuple[tuple[str, str | int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Spans of one track, int64 arrays of one length: times in ns of the run's clock, `body` an
    index into `bodies`, `flow_out` and `flow_in` the number of an arrow that begins or ends
    here, 0 for none. Of slices with equal times the one given first is the outer one."""

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    body: Indices
    bodies: list[Body]
    flow_out: Indices | None = None
    flow_in: Indices | None = None

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A row of the viewer below one of its groups: host, dispatch or device."""

    group: str
    name: str
    slices: Slices
    category: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A series of values, int64 or float64, each valid from its time to the next one's."""

    name: str
    unit: str
    t_ns: Nanoseconds
    values: npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(slots=True)
class Timeline:
    """Everything one trace file shows. `notes` are sentences for whoever opens it."""

    tracks: list[Track] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


Describe = Callable[..., Body]


def slices_of(frame: pd.DataFrame, columns: Sequence[str], describe: Describe) -> Slices:
    """Slices of a table of events. Events that agree in `columns` share a body, which `describe`
    makes of their values in that order."""
    if frame.empty:
        return joined([])
    grouped = frame.groupby(list(columns), observed=True, sort=False, dropna=False)
    body = np.asarray(grouped.ngroup(), dtype=np.int64)
    first = np.unique(body, return_index=True)[1]
    values: Iterable[tuple[Any, ...]] = (
        frame[list(columns)].iloc[first].itertuples(index=False, name=None)
    )
    return Slices(
        start_ns=frame["t_start_ns"].to_numpy(dtype=np.int64),
        end_ns=frame["t_end_ns"].to_numpy(dtype=np.int64),
        body=body,
        bodies=[describe(*row) for row in values],
    )


def joined(parts: Sequence[Slices]) -> Slices:
    """The slices of all parts on one track; earlier parts are the outer ones at equal times."""
    bodies: list[Body] = []
    indices = []
    for part in parts:
        indices.append(part.body + len(bodies))
        bodies += part.bodies

    def flows(of: Callable[[Slices], Indices | None]) -> Indices | None:
        if all(of(part) is None for part in parts):
            return None
        return _concatenated(
            [np.zeros(len(part), np.int64) if (f := of(part)) is None else f for part in parts]
        )

    return Slices(
        start_ns=_concatenated([part.start_ns for part in parts]),
        end_ns=_concatenated([part.end_ns for part in parts]),
        body=_concatenated(indices),
        bodies=bodies,
        flow_out=flows(lambda part: part.flow_out),
        flow_in=flows(lambda part: part.flow_in),
    )


def _concatenated(arrays: Sequence[Indices]) -> Indices:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)
