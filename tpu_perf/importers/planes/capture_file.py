"""Opens an XPlane file and gives its events with names, times in ns and stats resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_perf.errors import ImportProblem
from tpu_perf.xplane.schema import parse_space

SUFFIX = ".xplane.pb"
PROFILE_DIRECTORY = Path("plugins") / "profile"

Stats = Mapping[str, Any]  # name -> float, int, str or bytes

#: Times beyond this (three centuries) are not times: the file is damaged.
LATEST_NS = 2**63 // 1000


@dataclass(frozen=True, slots=True)
class EventType:
    """Event metadata: what all events of a type share. `text` is the full HLO text of a TPU op."""

    text: str
    display_name: str
    stats: Stats

    @property
    def name(self) -> str:
        return self.display_name or self.text


@dataclass(frozen=True, slots=True)
class Event:
    type: EventType
    start_ns: int
    end_ns: int
    stats: Stats

    def stat(self, name: str) -> Any:
        """A stat of the event, or of its type; None where neither has it."""
        found = self.stats.get(name)
        return self.type.stats.get(name) if found is None else found


class Plane:
    """One plane of a file. Raises ImportProblem while iterating over damaged events."""

    def __init__(self, plane: Any, path: Path) -> None:
        self._plane, self._path = plane, path
        self._stat_names = {identity: meta.name for identity, meta in plane.stat_metadata.items()}
        self.name: str = plane.name
        self.stats = self._resolved(plane.stats)
        self.types = {
            identity: EventType(meta.name, meta.display_name, self._resolved(meta.stats))
            for identity, meta in plane.event_metadata.items()
        }

    @property
    def lines(self) -> Iterator[tuple[str, int, Iterator[Event]]]:
        """Name of a line (its display name where it has one beside), count and events."""
        for line in self._plane.lines:
            yield line.name or line.display_name, len(line.events), self._events(line)

    def _events(self, line: Any) -> Iterator[Event]:
        base_ps = line.timestamp_ns * 1000
        for event in line.events:
            start_ps = base_ps + event.offset_ps
            end_ps = start_ps + event.duration_ps
            if event.duration_ps < 0 or start_ps < 0 or end_ps // 1000 > LATEST_NS:
                raise ImportProblem(
                    f"{self._path}: plane {self.name!r}, line {line.name!r} has an event at "
                    f"{start_ps} ps for {event.duration_ps} ps: the file is damaged"
                )
            kind = self.types.get(event.metadata_id)
            if kind is None:
                kind = EventType(f"event type {event.metadata_id} (not in the file)", "", {})
            stats = self._resolved(event.stats) if event.stats else {}
            yield Event(kind, start_ps // 1000, end_ps // 1000, stats)

    def _resolved(self, stats: Any) -> Stats:
        out: dict[str, Any] = {}
        for stat in stats:
            field = stat.WhichOneof("value")
            if field is None:
                continue
            value = getattr(stat, field)
            if field == "ref_value":
                value = self._stat_names.get(value, "")
            out[self._stat_names.get(stat.metadata_id, "")] = value
        return out


def open_planes(path: Path) -> tuple[list[Plane], list[str]]:
    """The planes of a file, and the host names and errors it mentions as sentences."""
    try:
        space = parse_space(path.read_bytes())
    except OSError as error:
        raise ImportProblem(f"{path} cannot be read: {error}") from None
    except ValueError as error:
        raise ImportProblem(
            f"{path} is damaged: {error}", hint="copy the capture again, or capture anew"
        ) from None
    if not space.planes:
        raise ImportProblem(f"{path} holds no planes: it is empty, truncated or no XPlane file")
    notes = [f"the capture says: {text}" for text in (*space.errors, *space.warnings)]
    return [Plane(plane, path) for plane in space.planes], notes


def find_capture(path: Path) -> tuple[Path, list[str]]:
    """The XPlane file that `path` means, and notes on what was passed over.

    A directory stands for its newest run below plugins/profile (or itself, where the files lie in
    it). Raises ImportProblem where there is none, or where a run has files of several hosts.
    """
    if path.is_file():
        return path, []
    base = path / PROFILE_DIRECTORY
    runs = [path] if any(path.glob(f"*{SUFFIX}")) else sorted(base.glob("*/"), key=_modified)
    runs = [run for run in runs if any(run.glob(f"*{SUFFIX}"))]
    if not runs:
        raise ImportProblem(f"{path} holds no *{SUFFIX} below {PROFILE_DIRECTORY}")
    files = sorted(runs[-1].glob(f"*{SUFFIX}"))
    if len(files) > 1:
        raise ImportProblem(
            f"{runs[-1]} holds captures of {len(files)} hosts, whose clocks differ",
            hint="import one at a time: " + ", ".join(str(file) for file in files[:4]),
        )
    passed = [f"of {len(runs)} captures, the newest was read: {runs[-1].name}"]
    return files[0], passed if len(runs) > 1 else []


def _modified(path: Path) -> tuple[float, str]:
    return path.stat().st_mtime, path.name
