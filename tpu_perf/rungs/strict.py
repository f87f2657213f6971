"""Rung `strict`: one program per op, asynchronous."""

from __future__ import annotations

from tpu_perf.rungs.interface import RUNGS, Rung

RUNGS.add(
    "strict",
    Rung(
        name="strict",
        summary="one program per op, asynchronous",
        change=lambda plan: plan.with_changes(engine="xla", mode="strict"),
    ),
)
