"""Rung `debug`: one op at a time, bounds and NaN checked."""

from __future__ import annotations

from tpu_perf.rungs.interface import RUNGS, Rung

RUNGS.add(
    "debug",
    Rung(
        name="debug",
        summary="one op at a time, bounds and NaN checked",
        change=lambda plan: plan.with_changes(engine="xla", mode="debug"),
    ),
)
