"""Device side of a trace: programs and the HLO instructions inside them, and arrows to them.

An arrow goes from an `execute` event to a device span of the same program by order alone: within
one step the nth enqueue of a program belongs to its nth span, which holds since a device runs
its queue in order. Where the two counts differ in a step, that program gets no arrows there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from tpu_perf.export.perfetto.host_lanes import Names
from tpu_perf.export.perfetto.tracks import Body, Indices, Slices, Track, joined, slices_of

MODULE_LANE = "module"
WITHOUT_DEVICE = "no device events in this run: spans are the host's enqueue calls"


def device_tracks(
    tables: Mapping[str, pd.DataFrame], names: Names, notes: list[str]
) -> tuple[list[Track], Indices | None]:
    """The device's tracks, and for each execute event the number of its arrow (0: none; None:
    the run has no device spans to point at)."""
    device, execute = tables["device"], tables["execute"]
    if device.empty:
        if execute.empty:
            return [], None
        notes.append(f"device lane: {WITHOUT_DEVICE}")
        enqueued = slices_of(execute, ["program"], lambda p: Body("program", names.program(p)))
        return [Track(group="device", name=f"programs ({WITHOUT_DEVICE})", slices=enqueued)], None
    is_module = device["lane"].astype("object") == MODULE_LANE
    instructions = device[~is_module]
    reported = not instructions.shape[0] or bool(is_module.any())
    programs = device[is_module] if reported else program_spans(instructions)
    kind = "device" if reported else "program"
    spans = slices_of(programs, ["program"], lambda p: Body(kind, names.program(p)))
    leaving, arriving = matched(execute, programs, notes)
    spans = replace(spans, flow_in=arriving)
    lanes = [
        (str(lane), slices_of(rows, ["program", "instruction"], lambda *row: _op(names, *row)))
        for lane, rows in instructions.groupby("lane", observed=True, sort=True)
    ]
    if not reported:
        notes.append(
            "device lane: XLA reported no whole programs; their spans are made of consecutive "
            "instructions of one program"
        )
    if len(lanes) == 1:
        lane, rows = lanes[0]
        return [Track(group="device", name=lane, slices=joined([spans, rows]))], leaving
    title = "programs" if reported else "programs (from their instructions)"
    tracks = [Track(group="device", name=title, slices=spans)]
    tracks += [Track(group="device", name=lane, slices=rows) for lane, rows in lanes]
    return tracks, leaving


def _op(names: Names, program: int, instruction: object) -> Body:
    name = instruction if isinstance(instruction, str) else "(no name)"
    return Body("device", name, (("program", names.program(program)),))


def program_spans(instructions: pd.DataFrame) -> pd.DataFrame:
    """Spans of whole programs from instructions of all lanes: columns t_start_ns, t_end_ns,
    program, step. A span ends where another program or step begins, or the instruction with
    which it began runs again after everything so far has ended."""
    rows = instructions.sort_values("t_start_ns", kind="stable")
    spans: list[list[int]] = []
    opening: object = None
    columns = (rows[name].to_numpy() for name in ("t_start_ns", "t_end_ns", "program", "step"))
    names = rows["instruction"].astype("object").to_numpy()
    for start, end, program, step, name in zip(*columns, names, strict=True):
        last = spans[-1] if spans else None
        again = last is not None and name == opening and start >= last[1]
        if last is None or again or (program, step) != (last[2], last[3]):
            spans.append([int(start), int(end), int(program), int(step)])
            opening = name
        else:
            last[1] = max(last[1], int(end))
    made = np.array(spans, dtype=np.int64).reshape(-1, 4)
    return pd.DataFrame(made, columns=["t_start_ns", "t_end_ns", "program", "step"])


def matched(
    execute: pd.DataFrame, programs: pd.DataFrame, notes: list[str]
) -> tuple[Indices, Indices]:
    """Numbers of arrows for the rows of both tables, 0 where a row has none."""
    leaving = np.zeros(len(execute), dtype=np.int64)
    arriving = np.zeros(len(programs), dtype=np.int64)
    sides: list[dict[Any, Any]] = []
    for frame in (execute, programs):
        rows = frame.reset_index(drop=True).sort_values("t_start_ns", kind="stable")
        groups: dict[Any, Any] = rows.groupby(["step", "program"], sort=False).indices
        sides.append({key: rows.index.to_numpy()[at] for key, at in groups.items()})
    enqueued, ran = sides
    arrow, unmatched = 0, 0
    for key, spans in ran.items():
        calls = enqueued.get(key)
        if calls is None or len(calls) != len(spans) or key[1] < 0:
            unmatched += len(spans)
            continue
        numbers = np.arange(arrow + 1, arrow + 1 + len(spans))
        leaving[calls], arriving[spans] = numbers, numbers
        arrow += len(spans)
    if unmatched:
        notes.append(
            f"{unmatched:,} of {len(programs):,} device spans have no arrow from an execute "
            "event: their step has another number of executions of that program"
        )
    return leaving, arriving


def with_arrows(track: Track, leaving: Indices) -> Track:
    """The execute track with the arrows that leave its slices."""
    slices: Slices = replace(track.slices, flow_out=leaving)
    return replace(track, slices=slices)
