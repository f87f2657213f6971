"""Rung `cpu_inductor`: torch.compile with inductor on the CPU, for context."""

from __future__ import annotations

from tpu_perf.rungs.interface import RUNGS, Rung

RUNGS.add(
    "cpu_inductor",
    Rung(
        name="cpu_inductor",
        summary="torch.compile with inductor on the CPU, for context",
        change=lambda plan: plan.with_changes(engine="cpu", mode="inductor"),
    ),
)
