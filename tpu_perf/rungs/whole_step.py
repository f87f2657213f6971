"""Rung `whole_step`: forward, backward and optimizer as one program."""

from __future__ import annotations

from tpu_perf.rungs.interface import RUNGS, Rung

RUNGS.add(
    "whole_step",
    Rung(
        name="whole_step",
        summary="forward, backward and optimizer as one program",
        change=lambda plan: plan.with_changes(engine="xla", mode="whole_step"),
    ),
)
