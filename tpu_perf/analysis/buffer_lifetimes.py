"""Each device buffer from its allocation to its release, and what it was for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tpu_perf.analysis.run_details import RunDetails, records
from tpu_perf.analysis.rung_record import RunTables

#: Groups of live bytes, in the order in which they are shown.
GROUPS: dict[str, str] = {
    "parameter": "found to be a parameter of the model",
    "gradient": "found to be a gradient, or allocated in the backward pass and alive after it",
    "optimizer_state": "found to be optimizer state, or allocated by the optimizer and alive "
    "after it",
    "model_buffer": "found to be a buffer of the model",
    "input": "found to be a batch",
    "activation": "allocated in the forward pass, released in or after the backward pass",
    "temporary": "allocated and released in the same phase of the same step",
    "other": "none of these, or the phase is not known",
    "before recording": "alive before the first event that names it",
}

NEVER = np.iinfo(np.int64).max
#: Order of the phases within a step; "other" has none.
_ORDER = {"forward": 0, "backward": 1, "optimizer": 2}
_OUTLIVES = {"forward": "activation", "backward": "gradient", "optimizer": "optimizer_state"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The phase of the step at any moment, from the dispatches around it."""

    times_ns: npt.NDArray[np.int64]
    sites: npt.NDArray[np.int64]
    phase_of: Mapping[int, str]

    def at(self, moment_ns: int) -> str:
        """The phase of the last dispatch that began by then; `other` where none did."""
        index = int(np.searchsorted(self.times_ns, moment_ns, side="right")) - 1
        return self.phase_of[int(self.sites[index])] if index >= 0 else "other"


def phases_of(tables: RunTables, details: RunDetails) -> Phases:
    """Phases from the sites of dispatches; a dispatch of unknown site tells nothing."""
    events = tables.events("dispatch")
    events = events[events["site"].isin(list(details.sites))]
    times, sites = (events[name].to_numpy(np.int64) for name in ("t_start_ns", "site"))
    order = np.argsort(times, kind="stable")
    phase_of = {number: site.phase for number, site in details.sites.items()}
    return Phases(times_ns=times[order], sites=sites[order], phase_of=phase_of)


def lifetimes(events: pd.DataFrame, tables: RunTables, details: RunDetails) -> pd.DataFrame:
    """One row per allocation among these memory events: buffer, nbytes, t_start_ns, t_end_ns
    (NEVER if not released), step, end_step (-1), site, phase, end_phase, group, name.

    Memory events are paired by `buffer`. A release without an allocation is a buffer from before
    the recording, alive from the beginning. Phases are those of the events' sites; a release that
    has none has the phase of the last dispatch before it.
    """
    events = events[events["buffer"] >= 0].sort_values("t_ns", kind="stable")
    when = phases_of(tables, details)
    rows: list[list[object]] = []
    alive: dict[int, list[list[object]]] = defaultdict(list)
    for event in records(events):
        site = details.site(int(event.site))
        phase = when.at(int(event.t_ns)) if site is None else site.phase
        if event.delta_bytes > 0:
            row: list[object] = [
                *(int(event.buffer), int(event.delta_bytes), int(event.t_ns), NEVER),
                *(int(event.step), -1, int(event.site), phase, ""),
            ]
            rows.append(row)
            # Numbers are unique among live buffers: one that comes again was released unseen.
            for former in alive[int(event.buffer)]:
                former[3] = int(event.t_ns)
            alive[int(event.buffer)] = [row]
        elif event.delta_bytes < 0:
            if alive[int(event.buffer)]:
                row = alive[int(event.buffer)].pop()
            else:
                row = [int(event.buffer), -int(event.delta_bytes), -1, NEVER, -1, -1, -1, "", ""]
                rows.append(row)
            row[3], row[5], row[8] = int(event.t_ns), int(event.step), phase
    columns = [
        *("buffer", "nbytes", "t_start_ns", "t_end_ns", "step", "end_step"),
        *("site", "phase", "end_phase"),
    ]
    frame = pd.DataFrame(rows, columns=columns)
    labels = _labels(frame, details)
    groups, names = [], []
    for index, row in enumerate(records(frame)):
        label = labels.get(index)
        groups.append(_group(row) if label is None else label[0])
        names.append("" if label is None else label[1])
    return frame.assign(group=groups, name=names)


def _labels(frame: pd.DataFrame, details: RunDetails) -> dict[int, tuple[str, str]]:
    """Category and name of the rows whose buffer was looked at while it lived; the last holds."""
    out: dict[int, tuple[str, str]] = {}
    by_buffer = frame.groupby("buffer").indices
    for label in records(details.buffer_labels.sort_values("t_ns")):
        for index in by_buffer.get(int(label.buffer), ()):
            begun, ended = frame["t_start_ns"].iloc[index], frame["t_end_ns"].iloc[index]
            if begun <= label.t_ns <= ended:
                out[int(index)] = (str(label.category), str(label.name or ""))
    return out


def _group(row: Any) -> str:
    """What an unlabelled buffer was for, by where it was allocated and released."""
    if row.t_start_ns < 0:
        return "before recording"
    begun, ended = _ORDER.get(row.phase), _ORDER.get(row.end_phase)
    if begun is None:
        return "other"
    if row.step == row.end_step and (ended is None or ended <= begun):
        return "temporary" if row.phase == row.end_phase else "other"
    return _OUTLIVES[str(row.phase)]
