"""A run opened for the XPlane export: its tables, the steps to mark, and cuts by step range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import zstandard

from tpu_perf.analysis.rung_record import RunTables
from tpu_perf.record.details import HLO_FILE, KEY_DIGITS
from tpu_perf.record.events import EVENT_KINDS
from tpu_perf.record.run import Run
from tpu_perf.record.store import StoredRun
from tpu_perf.xplane.schema import HloProto, decode

#: Phases whose steps are steps to XProf; the others (first, warmup, bare) would spoil its means.
MARKED_PHASES = ("timed", "probe")

#: More than this in one file and viewers become slow; a longer run is cut between steps.
EVENTS_PER_FILE = 1_500_000

#: The first event lies this long after the capture's origin: XProf takes offset 0 for "none".
LEAD_NS = 1_000


HLO_LIMIT_BYTES = 2**29  # one module larger than this would leave no room below protobuf's 2 GiB


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the run that goes into one file: events that start in [start_ns, end_ns)."""

    start_ns: int
    end_ns: int
    first_step: int | None = None  # None: the whole run
    last_step: int | None = None

    @property
    def origin_ns(self) -> int:
        """The instant that the file calls 0."""
        return self.start_ns - LEAD_NS

    def cut(self, frame: pd.DataFrame, start: str = "t_start_ns") -> pd.DataFrame:
        """The rows that start within this part."""
        times = frame[start]
        return frame[(times >= self.start_ns) & (times < self.end_ns)]


@dataclass
class Capture:
    """Tables of a run, read once, and `notes`: sentences for whoever asked for the export."""

    stored: StoredRun
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tables = RunTables(self.stored)
        self._details: dict[str, pd.DataFrame] = {}

    @property
    def run(self) -> Run:
        return self.stored.run

    def detail(self, name: str) -> pd.DataFrame:
        if name not in self._details:
            self._details[name] = self.stored.detail(name)
        return self._details[name]

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    @cached_property
    def program_names(self) -> Mapping[int, str]:
        programs = self.tables.programs
        return dict(zip(programs.index.tolist(), texts(programs["name"]), strict=True))

    @cached_property
    def hlo(self) -> Mapping[int, bytes]:
        """Program -> its HloProto, for the programs that have one stored."""
        programs = self.tables.programs
        keys = dict(zip(programs.index.tolist(), texts(programs["key"]), strict=True))
        root = self.stored.directory / "programs"
        read = {number: _hlo(root / key[:KEY_DIGITS] / HLO_FILE) for number, key in keys.items()}
        return {number: data for number, data in read.items() if data is not None}

    @cached_property
    def module_names(self) -> Mapping[int, str]:
        """Program -> the name of its HLO module, which XProf lists; our own name without HLO."""
        parsed = {number: decode(HloProto, data) for number, data in self.hlo.items()}
        named = {n: proto.hlo_module.name for n, proto in parsed.items() if proto is not None}
        return {number: named.get(number) or name for number, name in self.program_names.items()}

    @property
    def is_measured(self) -> bool:
        """Whether XLA's profiler saw the device; else its spans come from execute events."""
        return not self.tables.events("device").empty

    @cached_property
    def marked_steps(self) -> pd.DataFrame:
        """Timed and probe steps in order."""
        return self.tables.phase(*MARKED_PHASES).sort_values("t_start_ns")

    @cached_property
    def device_steps(self) -> pd.DataFrame:
        """The marked steps in which the device was seen; all where its spans are derived."""
        steps = self.marked_steps
        if not self.is_measured:
            return steps
        return steps[steps["step"].isin(self.tables.events("device")["step"])]

    def parts(self, limit: int) -> list[Part]:
        """Cuts at starts of marked steps so that no part has more than `limit` events, unless a
        single step has. Empty for a run without any event or step."""
        starts = np.sort(np.concatenate(list(self._start_times())))
        if not len(starts):
            return []
        steps = self.marked_steps[["step", "t_start_ns"]].to_numpy(dtype=np.int64)
        if len(starts) <= limit or not len(steps):
            return [Part(int(starts[0]), int(starts[-1]) + 1)]
        before = np.searchsorted(starts, steps[:, 1])  # events before each step
        cuts, begun = [0], 0
        for index in range(1, len(steps)):
            next_count = before[index + 1] if index + 1 < len(steps) else len(starts)
            if next_count - begun > limit and index > cuts[-1]:
                cuts.append(index)
                begun = int(before[index])
        edges = [int(starts[0]), *(int(steps[cut, 1]) for cut in cuts[1:]), int(starts[-1]) + 1]
        lasts = [*(cut - 1 for cut in cuts[1:]), len(steps) - 1]
        return [
            Part(edges[i], edges[i + 1], int(steps[cut, 0]), int(steps[lasts[i], 0]))
            for i, cut in enumerate(cuts)
        ]

    def _start_times(self) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        for kind, spec in EVENT_KINDS.items():
            yield self.tables.events(kind)[spec.columns[0][0]].to_numpy(dtype=np.int64)
        yield self.tables.steps["t_start_ns"].to_numpy(dtype=np.int64)


def texts(column: pd.Series[str]) -> list[str]:
    """A column of strings as a list; missing becomes ""."""
    return [value if isinstance(value, str) else "" for value in column.astype(object)]


def _hlo(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            data = zstandard.ZstdDecompressor().stream_reader(file).read(HLO_LIMIT_BYTES + 1)
    except (OSError, zstandard.ZstdError):
        return None
    return data if 0 < len(data) <= HLO_LIMIT_BYTES else None
