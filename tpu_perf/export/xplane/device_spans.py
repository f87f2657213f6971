"""What each device core did when: from the profiler's events, or derived from execute events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tpu_perf.export.xplane.capture import Capture
from tpu_perf.record.events import MODULE_LANE
from tpu_perf.xplane.nesting import nested_levels

#: Columns of ops and modules: int64 times in ns, `program` -1 unknown, `instruction` "" where the
#: span is a whole program.
SPAN_COLUMNS = ("t_start_ns", "t_end_ns", "program", "instruction", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One device plane. `ops` nest and are sorted, parents first; `overlapping` are the ops that
    partly overlap one of them; `modules` are whole programs in order, with `run_id`: the number of
    the execute event that enqueued it (`enqueued`), -1 where that cannot be told."""

    ordinal: int
    lane: str
    ops: pd.DataFrame
    overlapping: pd.DataFrame
    modules: pd.DataFrame


def device_cores(capture: Capture) -> list[Core]:
    """The cores of a run: one a lane of its `device` events, or one core with a span for each
    execute event where there are none. Empty for a run that executed nothing."""
    if not capture.is_measured:
        return _derived(capture)
    events = _spans(capture.tables.events("device"), ("lane",))
    events["lane"] = events["lane"].astype(object).fillna("")
    modules = _sorted(events[events["lane"] == MODULE_LANE])
    ops = _sorted(events[events["lane"] != MODULE_LANE])
    lanes = sorted(ops["lane"].unique(), key=_natural)
    merged = len(lanes) > 1 and not _is_tpu(capture) and _never_at_once(ops)
    if merged:
        capture.note(f"{len(lanes)} threads of the device took turns: shown as one core")
        lanes = ["all threads"]
        ops = ops.assign(lane=lanes[0])
    return [
        _core(capture, ordinal, lane, ops[ops["lane"] == lane], modules if ordinal == 0 else None)
        for ordinal, lane in enumerate(lanes or [MODULE_LANE])
    ]


def _core(
    capture: Capture, ordinal: int, lane: str, ops: pd.DataFrame, modules: pd.DataFrame | None
) -> Core:
    levels = nested_levels(ops["t_start_ns"].to_numpy(), ops["t_end_ns"].to_numpy())
    if levels.any():
        capture.note(
            f"{np.count_nonzero(levels):,} device events of {lane} partly overlap another: they "
            "are on the line `Async XLA Ops`, which XProf shows and does not count"
        )
    nested = ops[levels == 0]
    if modules is None or modules.empty:
        capture.note("XLA reported no whole programs: `XLA Modules` shows the spans of their ops")
        modules = _modules_of(nested)
    return Core(
        ordinal=ordinal,
        lane=lane,
        ops=nested,
        overlapping=ops[levels > 0],
        modules=_linked(capture, _within_steps(capture, modules), ordinal),
    )


def _derived(capture: Capture) -> list[Core]:
    executes = capture.tables.events("execute")
    if executes.empty:
        capture.note("the run executed no program that was recorded: there is no device plane")
        return []
    capture.note(
        "the run has no device events: a device span is the host's call that enqueued the "
        "program (on a CPU it may compute in this call). Work done after the call counts as idle"
    )
    spans = _spans(enqueued(capture).assign(instruction=""), ())
    # Threads may enqueue at once; the device takes one program after the other.
    starts, ends = spans["t_start_ns"].to_numpy(), spans["t_end_ns"].to_numpy()
    taken = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]])
    starts = np.minimum(np.maximum(starts, taken), np.maximum.accumulate(ends))
    spans = spans.assign(t_start_ns=starts, t_end_ns=np.maximum(ends, starts))
    return [
        Core(
            ordinal=0,
            lane="derived from execute events",
            ops=spans,
            overlapping=spans.iloc[:0],
            modules=_linked(capture, _within_steps(capture, spans), 0),
        )
    ]


def enqueued(capture: Capture) -> pd.DataFrame:
    """The execute events in order of their start; their position + 1 is the run_id."""
    return _sorted(capture.tables.events("execute"))


def _linked(capture: Capture, modules: pd.DataFrame, ordinal: int) -> pd.DataFrame:
    """Modules with run_id: the n-th of a program in a step was enqueued by the n-th execute event
    of that program and step, if there are as many of both. Only the first core is linked."""
    keys = ["step", "program"]
    executes = enqueued(capture)[keys].assign(run_id=lambda frame: np.arange(len(frame)) + 1)
    numbered = executes.assign(
        turn=executes.groupby(keys).cumcount(),
        times=executes.groupby(keys)["run_id"].transform("size"),
    )
    turns = modules[keys].assign(
        turn=modules.groupby(keys).cumcount(),
        times=modules.groupby(keys)["t_start_ns"].transform("size"),
    )
    found = turns.merge(numbered, how="left", on=[*keys, "turn", "times"])["run_id"]
    run_id = found.fillna(-1).astype("int64").to_numpy()
    return modules.assign(run_id=run_id if ordinal == 0 else -1)


def _spans(events: pd.DataFrame, more: tuple[str, ...]) -> pd.DataFrame:
    frame = events[[*SPAN_COLUMNS, *more]].copy()
    frame["instruction"] = frame["instruction"].astype(object).fillna("")
    return frame


def _sorted(spans: pd.DataFrame) -> pd.DataFrame:
    order = np.lexsort((-spans["t_end_ns"].to_numpy(), spans["t_start_ns"].to_numpy()))
    return spans.iloc[order].reset_index(drop=True)


def _natural(lane: str) -> tuple[int, str]:
    """Sorts "core 2" before "core 10"."""
    return len(lane), lane


def _is_tpu(capture: Capture) -> bool:
    environment = capture.run.environment
    return environment is not None and "TPU" in environment.device_kind


def _never_at_once(ops: pd.DataFrame) -> bool:
    """Whether no event of one lane overlaps one of another."""
    lanes = pd.factorize(ops["lane"])[0]
    ends = ops["t_end_ns"].to_numpy()
    starts = ops["t_start_ns"].to_numpy()
    for lane in np.unique(lanes):
        own = lanes == lane
        reach = np.maximum.accumulate(np.where(own, ends, np.iinfo(np.int64).min))
        if np.any(~own & (starts < reach)):
            return False
    return True


def _modules_of(ops: pd.DataFrame) -> pd.DataFrame:
    """One span for each run of consecutive ops of one program in one step; a run is cut where its
    first instruction comes again, because then the program ran again."""
    if ops.empty:
        return ops
    program, step = ops["program"].to_numpy(), ops["step"].to_numpy()
    changed = np.ones(len(ops), dtype=bool)
    changed[1:] = (program[1:] != program[:-1]) | (step[1:] != step[:-1])
    opening = np.maximum.accumulate(np.where(changed, np.arange(len(ops)), 0))
    instruction = ops["instruction"].to_numpy()
    begins = changed | (instruction == instruction[opening])
    groups = np.cumsum(begins) - 1
    return pd.DataFrame(
        {
            "t_start_ns": ops["t_start_ns"].groupby(groups).min().to_numpy(),
            "t_end_ns": ops["t_end_ns"].groupby(groups).max().to_numpy(),
            "program": program[begins],
            "instruction": "",
            "step": step[begins],
        }
    )


def _within_steps(capture: Capture, modules: pd.DataFrame) -> pd.DataFrame:
    """Modules cut at the end of their step: XProf makes a step of its own of what sticks out."""
    ends = capture.tables.steps.set_index("step")["t_end_ns"]
    limit = modules["step"].map(ends).fillna(np.inf)
    late = modules["t_end_ns"] > limit
    if late.any():
        capture.note(f"{late.sum():,} programs end after the fence of their step: shown until it")
        cut = np.maximum(np.minimum(modules["t_end_ns"], limit), modules["t_start_ns"])
        modules = modules.assign(t_end_ns=cut.astype("int64"))
    return modules
