"""Exporter `perfetto`: trace files for ui.perfetto.dev, read back before they get their names."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from tpu_perf.errors import ExportMismatch
from tpu_perf.export.perfetto.encoding import Moved, encode
from tpu_perf.export.perfetto.reopening import Reopened, Totals, reopen
from tpu_perf.export.perfetto.timeline import Part, load_tables, origin_ns, parts
from tpu_perf.export.run_interface import RUN_EXPORTERS, Exported, RunExporter
from tpu_perf.record.store import StoredRun

FILE_NAME = "trace"
SUFFIX = ".pftrace"


def write(stored: StoredRun, directory: Path) -> Exported:
    """Write trace.pftrace, or trace-steps-A-B.pftrace for each group of steps of a large run.

    Each file is read back and compared with the run's tables; on a mismatch it is removed and
    ExportMismatch is raised. Times count from the run's first event.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tables, steps = load_tables(stored), stored.steps()
    origin = origin_ns(tables, steps)
    if origin is None:
        raise ExportMismatch(
            "this run holds no events and no steps, so there is nothing to show",
            hint=f"the run's status is {stored.run.status}: {stored.run.reason or 'no reason'}",
        )
    pending: list[tuple[Path, Path]] = []
    notes: list[str] = []
    try:
        for part in parts(stored, tables, steps):
            temporary = directory / f"{FILE_NAME}-{len(pending)}{SUFFIX}.{os.getpid()}.tmp"
            pending.append((temporary, directory / f"{FILE_NAME}-{part.label}{SUFFIX}"))
            with temporary.open("wb") as file:
                moved = encode(part.timeline, origin, file)
            verify(part, origin, reopen(temporary))
            notes += [note for note in _notes(part, moved) if note not in notes]
        if len(pending) == 1:
            pending = [(pending[0][0], directory / f"{FILE_NAME}{SUFFIX}")]
        else:
            notes.insert(0, f"more events than a viewer holds: split by step into {len(pending)}")
        for temporary, path in pending:
            os.replace(temporary, path)
    finally:
        for temporary, _ in pending:
            temporary.unlink(missing_ok=True)
    files = [path for _, path in pending]
    return Exported(files=files, notes=notes, opens_with="https://ui.perfetto.dev (Open trace)")


def _notes(part: Part, moved: list[Moved]) -> list[str]:
    notes = list(part.timeline.notes)
    notes += [
        f"{entry.slices:,} slices of {entry.track!r} overlap others without nesting; they are "
        f"shown whole on {entry.lanes} more tracks beside it"
        for entry in moved
    ]
    if part.oversized:
        notes.append(f"{part.label} alone has more events than one file should")
    return notes


def verify(part: Part, origin: int, found: Reopened) -> None:
    """Compare what was read back with the run's tables. Raises ExportMismatch.

    Compared are the number and total duration of slices of each kind of event, the number, last
    value and maximum of each counter, the number of arrows, and the first and last time.
    """
    expected = expected_totals(part)
    for category in sorted({*expected, *found.categories}):
        wanted, read = expected.get(category, Totals()), found.categories.get(category, Totals())
        if wanted != read:
            raise ExportMismatch(
                f"{category}: the run has {wanted.count} events of {wanted.total_ns} ns in all, "
                f"the trace reads back {read.count} of {read.total_ns} ns"
            )
    for counter in part.timeline.counters:
        read_back = found.counters.get(counter.name)
        wanted_values = (len(counter.t_ns), float(counter.values[-1]), float(counter.values.max()))
        if read_back is None or wanted_values != (
            read_back.count,
            read_back.last,
            read_back.maximum,
        ):
            raise ExportMismatch(
                f"counter {counter.name!r}: number, last and maximum are {wanted_values}, "
                f"the trace reads back {read_back}"
            )
    live = part.tables["memory"].sort_values("t_ns", kind="stable")["live_bytes"]
    if len(live):
        shown = found.counters["live device bytes"]
        if (shown.last, shown.maximum) != (float(live.iloc[-1]), float(live.max())):
            raise ExportMismatch("live device bytes read back differ from the run's memory events")
    flows = sum(
        int(np.count_nonzero(track.slices.flow_in))
        for track in part.timeline.tracks
        if track.slices.flow_in is not None
    )
    if flows != found.flows:
        raise ExportMismatch(f"{flows} arrows were to be drawn, {found.flows} read back")
    ends = [int(track.slices.end_ns.max()) for track in part.timeline.tracks if len(track.slices)]
    ends += [int(counter.t_ns.max()) for counter in part.timeline.counters]
    if found.last_ns != max(ends) - origin:
        raise ExportMismatch(f"the trace ends at {found.last_ns} ns, not {max(ends) - origin} ns")


def expected_totals(part: Part) -> dict[str, Totals]:
    """From the tables: each kind's rows and durations. Slices made here (modules, programs) have
    no table, so theirs are the timeline's."""
    out = {
        kind: Totals(len(frame), int((frame["t_end_ns"] - frame["t_start_ns"]).sum()))
        for kind, frame in part.tables.items()
        if kind != "memory" and not frame.empty
    }
    if not part.steps.empty:
        lasted = (part.steps["t_end_ns"] - part.steps["t_start_ns"]).sum()
        out["step"] = Totals(len(part.steps), int(lasted))
    for track in part.timeline.tracks:
        slices = track.slices
        lengths = slices.end_ns - slices.start_ns
        for category in ("module", "program"):
            of_it = np.array([body.category == category for body in slices.bodies], dtype=bool)
            if of_it.any():
                chosen = lengths[of_it[slices.body]]
                before = out.get(category, Totals())
                out[category] = Totals(
                    before.count + len(chosen), before.total_ns + int(chosen.sum())
                )
    return out


RUN_EXPORTERS.add(
    "perfetto",
    RunExporter(
        name="perfetto",
        summary="timeline of host, dispatch and device for ui.perfetto.dev",
        write=write,
    ),
)
