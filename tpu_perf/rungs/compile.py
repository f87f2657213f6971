"""Rung `compile`: torch.compile: one program forward, one backward."""

from __future__ import annotations

from tpu_perf.rungs.interface import RUNGS, Rung

RUNGS.add(
    "compile",
    Rung(
        name="compile",
        summary="torch.compile: one program forward, one backward",
        change=lambda plan: plan.with_changes(engine="xla", mode="compile"),
    ),
)
