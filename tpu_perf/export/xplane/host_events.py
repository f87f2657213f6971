"""Every host event of a part as columns: its type, its thread, its nesting rank and its stats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tpu_perf.export.xplane.capture import Capture, Part, texts
from tpu_perf.export.xplane.device_plane import module_name
from tpu_perf.export.xplane.device_spans import enqueued
from tpu_perf.export.xplane.op_names import OpNames
from tpu_perf.record.events import Tier
from tpu_perf.xplane.event_encoding import Integers, StatType
from tpu_perf.xplane.plane_writer import Name, PlaneWriter

ABSENT = -1  # of a stat of one event

#: Metadata stat that says which of our tables an event came from; the importer looks for it.
KIND_STAT = "event_kind"
TRAIN, ENQUEUE, FENCE = "train", "DoEnqueueProgram", "fence"

STAT_TYPES: dict[str, StatType] = {
    "step_num": "int64",
    "_r": "int64",  # "root": XProf groups what lies in the event into a step
    "phase": "ref",
    "tf_op": "ref",
    "module": "ref",
    "source": "ref",
    "program": "ref",
    "run_id": "int64",
    "queue_id": "int64",
    "device_ordinal": "int64",
    "tier": "ref",
    "differed": "ref",
    "trace_ns": "int64",
    "backend_ns": "int64",
    "ops": "int64",
    "bytes": "int64",
    "key": "ref",
    "hit": "int64",
}

#: Where two events have the same span, the one named earlier holds the other.
NESTING = (
    *("step", "annotation", "fence", "dispatch", "fallback", "flush"),
    *("compile", "lookup", "transfer", "sync", "execute"),
)

Stats = Mapping[str, Integers]


@dataclass(frozen=True, slots=True)
class HostEvents:
    """Events as int64 columns of one length. `thread` 0 is the main thread; a stat is ABSENT
    where the event lacks it."""

    type_id: Integers
    start_ns: Integers
    end_ns: Integers
    thread: Integers
    rank: Integers
    stats: Stats

    def take(self, rows: Integers) -> HostEvents:
        return HostEvents(
            self.type_id[rows],
            self.start_ns[rows],
            self.end_ns[rows],
            self.thread[rows],
            self.rank[rows],
            {name: values[rows] for name, values in self.stats.items()},
        )


def collect(plane: PlaneWriter, capture: Capture, part: Part, names: OpNames) -> HostEvents:
    """All host events of a part; their types are added to the plane."""
    source = _Source(plane, capture, part, names)
    chunks = [
        source.steps(),
        source.fences(),
        source.dispatches(),
        source.executes(),
        *(source.plain(kind) for kind in _PLAIN),
    ]
    present = [chunk for chunk in chunks if len(chunk.type_id)]
    if not present:
        return chunks[0]
    stats = {
        name: np.concatenate([_filled(chunk, name) for chunk in present])
        for name in STAT_TYPES
        if any(name in chunk.stats for chunk in present)
    }
    return HostEvents(
        np.concatenate([chunk.type_id for chunk in present]),
        np.concatenate([chunk.start_ns for chunk in present]),
        np.concatenate([chunk.end_ns for chunk in present]),
        np.concatenate([chunk.thread for chunk in present]),
        np.concatenate([chunk.rank for chunk in present]),
        stats,
    )


def _filled(chunk: HostEvents, name: str) -> Integers:
    missing = np.full(len(chunk.type_id), ABSENT, dtype=np.int64)
    return chunk.stats.get(name, missing)


@dataclass(frozen=True, slots=True)
class _Source:
    plane: PlaneWriter
    capture: Capture
    part: Part
    names: OpNames

    def steps(self) -> HostEvents:
        """The marked steps, on the main thread; what lies within belongs to them."""
        steps = self.part.cut(self.capture.marked_steps)
        names = [TRAIN] * len(steps)
        stats = {
            "step_num": _whole(steps["step"]),
            "_r": np.ones(len(steps), dtype=np.int64),
            "phase": self._refs(steps["phase"]),
        }
        return self._events("step", steps, names, stats)

    def fences(self) -> HostEvents:
        """From the step function's return to the step's end: the host waits for the device."""
        steps = self.part.cut(self.capture.marked_steps)
        spans = steps.assign(t_start_ns=steps["t_dispatched_ns"])
        return self._events(FENCE, spans, [FENCE] * len(steps), {})

    def dispatches(self) -> HostEvents:
        events = self.part.cut(self.capture.tables.events("dispatch"))
        codes, unique = pd.factorize(
            pd.MultiIndex.from_arrays([events["site"], events["op"].astype(object)])
        )
        origins = [self.names.of_site(int(site), str(op)) for site, op in unique]
        modules = [self.names.of_site(int(site)).module for site, _ in unique]
        stats = {
            "tf_op": self._looked_up(codes, [origin.tf_op for origin in origins]),
            "module": self._looked_up(codes, modules),
            "source": self._looked_up(codes, [origin.source for origin in origins]),
            "program": self._programs(events["program"]),
        }
        return self._events("dispatch", events, events["op"], stats)

    def executes(self) -> HostEvents:
        """Calls into PJRT, named so that XProf links them to the device's modules."""
        events = enqueued(self.capture)
        events = self.part.cut(events.assign(run_id=np.arange(len(events)) + 1))
        zeros = np.zeros(len(events), dtype=np.int64)
        stats = {
            "run_id": _whole(events["run_id"]),
            "queue_id": zeros,
            "device_ordinal": zeros,
            "program": self._programs(events["program"]),
            "tier": self._tiers(events["tier"]),
        }
        return self._events("execute", events, [ENQUEUE] * len(events), stats)

    def plain(self, kind: str) -> HostEvents:
        events = self.part.cut(self.capture.tables.events(kind))
        name, columns = _PLAIN[kind]
        makers: dict[str, Callable[[pd.Series], Integers]] = {
            "program": self._programs,
            "tier": self._tiers,
            **dict.fromkeys(("differed", "source", "key"), self._refs),
        }
        stats = {column: makers.get(column, _whole)(events[column]) for column in columns}
        names = events[name].map(_tier_name) if name == "tier" else events[name]
        if kind == "compile":
            program_names = self.capture.program_names
            names = events["program"].map(lambda number: program_names.get(number, "unknown"))
        return self._events(kind, events, names, stats)

    def _events(
        self, kind: str, frame: pd.DataFrame, names: Sequence[str] | pd.Series, stats: Stats
    ) -> HostEvents:  # fmt: skip
        """Columns of a table's rows, whose types are their names (and kinds of annotation)."""
        labels = pd.Series(names, dtype=object).fillna("").to_numpy()
        sub = frame["kind"].astype(object).fillna("") if kind == "annotation" else [""] * len(frame)
        codes, unique = pd.factorize(pd.MultiIndex.from_arrays([labels, sub]))
        ids = np.array(
            [self._type(kind, str(name), str(what)) for name, what in unique], dtype=np.int64
        )
        start = _whole(frame["t_start_ns"])
        return HostEvents(
            type_id=ids[codes] if len(ids) else np.zeros(0, dtype=np.int64),
            start_ns=start,
            end_ns=np.maximum(_whole(frame["t_end_ns"]), start),
            thread=self._threads(frame),
            rank=np.full(len(frame), NESTING.index(kind), dtype=np.int64),
            stats=stats,
        )

    def _type(self, kind: str, name: str, annotation: str) -> int:
        prefixed = name if kind in _BARE_NAMES else f"{kind} {name}".strip()
        stats = {KIND_STAT: Name(kind), "event_name": Name(name)}
        if annotation:
            stats["annotation_kind"] = Name(annotation)
        return self.plane.event_type(prefixed, stats=stats)

    def _threads(self, frame: pd.DataFrame) -> Integers:
        if "thread" in frame:
            return np.maximum(_whole(frame["thread"]), 0)
        return threads_of(frame, self.capture.tables.events("dispatch"))

    def _refs(self, column: pd.Series) -> Integers:
        codes, unique = pd.factorize(pd.Series(texts(column), dtype=object))
        return self._looked_up(codes, [str(text) for text in unique])

    def _looked_up(self, codes: Integers, strings: Sequence[str]) -> Integers:
        """Interned strings by code; "" is absent."""
        ids = [self.plane.stat_id(text) if text else ABSENT for text in strings]
        return np.array(ids, dtype=np.int64)[codes] if ids else np.zeros(0, dtype=np.int64)

    def _programs(self, column: pd.Series) -> Integers:
        codes, unique = pd.factorize(column)
        names = [module_name(self.capture, int(n)) if n >= 0 else "" for n in unique]
        return self._looked_up(codes, names)

    def _tiers(self, column: pd.Series) -> Integers:
        codes, unique = pd.factorize(column)
        return self._looked_up(codes, [_tier_name(tier) for tier in unique])


#: Kinds whose events are shown under their bare name; others as "kind name".
_BARE_NAMES = ("step", "dispatch", "execute", "annotation", FENCE)

#: Kind -> the column that names the event, and the columns that become stats.
_PLAIN: dict[str, tuple[str, tuple[str, ...]]] = {
    "annotation": ("name", ()),
    "compile": ("program", ("program", "tier", "trace_ns", "backend_ns", "differed", "source")),
    "flush": ("reason", ("ops", "program")),
    "transfer": ("direction", ("bytes",)),
    "sync": ("reason", ()),
    "fallback": ("op", ()),
    "lookup": ("tier", ("program", "key", "hit", "differed")),
}


def _whole(column: pd.Series) -> Integers:
    return column.to_numpy(dtype=np.int64)


def _tier_name(tier: int) -> str:
    return Tier(tier).name.lower() if tier in set(Tier) else ""


def threads_of(events: pd.DataFrame, dispatches: pd.DataFrame) -> Integers:
    """The thread of each event: that of the dispatch it lies in; 0, the main thread, where it lies
    in none or threads were not recorded."""
    out = np.zeros(len(events), dtype=np.int64)
    if dispatches.empty or not (dispatches["thread"] > 0).any():
        return out
    ordered = dispatches.sort_values("t_start_ns", kind="stable")
    starts = ordered["t_start_ns"].to_numpy()
    at = np.searchsorted(starts, events["t_start_ns"].to_numpy(), side="right") - 1
    inside = (at >= 0) & (events["t_end_ns"].to_numpy() <= ordered["t_end_ns"].to_numpy()[at])
    threads = np.maximum(ordered["thread"].to_numpy()[at], 0)
    return np.where(inside, threads, out)
