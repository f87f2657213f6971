"""Idle time by cause, against a walk over every microsecond of random steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.stored_runs import ORIGIN, STEP_US, US, detailed_rows, write_detailed_run
from tpu_perf.analysis.device_idle import CAUSES, FROM_DEVICE, FROM_EXECUTE, idle
from tpu_perf.analysis.run_details import RunDetails
from tpu_perf.analysis.rung_record import RunTables

Rows = dict[str, list[tuple[Any, ...]]]
LASTS_US = 900  # of a step; between steps 100 more
STEPS = {"device": 2, "execute": 1}  # which step counts, by what tells of the device


def rows_of(chance: random.Random, told_by: str) -> Rows:
    """Random spans of every kind, some of which begin before the step or end after it."""
    rows: Rows = {kind: [] for kind in detailed_rows()}
    step = STEPS[told_by]
    begin = ORIGIN + step * STEP_US * US
    makes: dict[str, Callable[[int, int], tuple[Any, ...]]] = {
        told_by: lambda s, e: (
            (s, e, 0, chance.choice(["all-reduce.1", "dot.2"]), "core 0", step)
            if told_by == "device"
            else (s, e, 0, 0, step)
        ),
        "compile": lambda s, e: (s, e, 0, 3, 1, 1, "shape", "model.py:1", step),
        "transfer": lambda s, e: (s, e, "h2d", 8, step),
        "sync": lambda s, e: (s, e, "item()", step),
        "annotation": lambda s, e: (s, e, "next", chance.choice(["data", "user"]), 0, step),
    }
    for kind, make in makes.items():
        for _ in range(chance.randrange(1, 7)):
            start = begin + chance.randrange(-40, LASTS_US) * US
            rows[kind].append(make(start, start + chance.randrange(0, 150) * US))
    rows["dispatch"] = [(begin + 400 * US, begin + 410 * US, "aten::mm", 0, step, 0, 0)]
    return rows


def walked(rows: Rows, told_by: str) -> dict[str, int]:
    """Microseconds by cause, one after the other; the first cause that holds has it."""
    step = STEPS[told_by]
    begin = ORIGIN + step * STEP_US * US

    def holds(kind: str, at: int, **only: str) -> bool:
        return any(
            row[0] <= at < row[1] and all(value in row for value in only.values())
            for row in rows[kind]
        )

    def is_busy(at: int) -> bool:
        return holds("device", at, which="dot.2") if told_by == "device" else holds("execute", at)

    out = dict.fromkeys(["busy", *CAUSES], 0)
    gap_waits = False
    was_busy = True
    for number in range(LASTS_US):
        at = begin + number * US
        if is_busy(at):
            out["busy"] += 1
            was_busy = True
            continue
        if was_busy:  # a gap begins: was the host waiting for the device then?
            gap_waits = any(row[0] <= at <= row[1] for row in rows["sync"])
            was_busy = False
        if holds("compile", at):
            cause = "compile"
        elif holds("transfer", at):
            cause = "transfer"
        elif told_by == "device" and holds("device", at, which="all-reduce.1"):
            cause = "collective"
        elif holds("annotation", at, which="data"):
            cause = "input"
        else:
            cause = "sync" if gap_waits else "host-bound"
        out[cause] += 1
    return out


@pytest.mark.parametrize("told_by", STEPS)
@pytest.mark.parametrize("seed", range(12))
def test_every_microsecond_has_its_cause(tmp_path: Path, told_by: str, seed: int) -> None:
    rows = rows_of(random.Random(seed), told_by)
    stored = write_detailed_run(tmp_path / "run", rows)
    found = idle(RunTables(stored), RunDetails(stored))
    assert found is not None
    assert found.method == (FROM_DEVICE if told_by == "device" else FROM_EXECUTE)
    seconds = {"busy": found.busy, **found.causes}
    microseconds = {cause: (metric.value or 0) * 1e6 for cause, metric in seconds.items()}
    assert microseconds == pytest.approx(walked(rows, told_by), abs=1e-6)
    assert found.step_s.value == pytest.approx(LASTS_US * 1e-6)
    lasted = [gap.seconds for gap in found.gaps]
    assert lasted == sorted(lasted, reverse=True)
    for gap in found.gaps:
        before_dispatch = gap.after_step_start_s + gap.seconds <= 400e-6 + 1e-12
        assert gap.line == ("model.py:11 forward" if before_dispatch else "(unknown)")


def test_a_step_in_which_nothing_ran_is_idle_throughout(tmp_path: Path) -> None:
    rows: Rows = {kind: [] for kind in detailed_rows()}
    begin = ORIGIN + STEP_US * US
    rows["execute"] = [(begin, begin, 0, 0, 1)]
    stored = write_detailed_run(tmp_path / "run", rows)
    found = idle(RunTables(stored), RunDetails(stored))
    assert found is not None
    assert found.busy.value == 0
    assert found.causes["host-bound"].value == pytest.approx(LASTS_US * 1e-6)
    assert len(found.gaps) == 1
    empty = write_detailed_run(tmp_path / "empty", {kind: [] for kind in rows})
    assert idle(RunTables(empty), RunDetails(empty)) is None
