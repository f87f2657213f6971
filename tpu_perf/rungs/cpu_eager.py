"""Rung `cpu_eager`: torch itself on the CPU, eager, for context."""

from __future__ import annotations

from tpu_perf.rungs.interface import RUNGS, Rung

RUNGS.add(
    "cpu_eager",
    Rung(
        name="cpu_eager",
        summary="torch itself on the CPU, eager, for context",
        change=lambda plan: plan.with_changes(engine="cpu", mode="eager"),
    ),
)
