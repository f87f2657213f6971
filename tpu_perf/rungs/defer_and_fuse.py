"""Rung `defer_and_fuse`: ops recorded, cut into segments, one program each."""

from __future__ import annotations

from tpu_perf.rungs.interface import RUNGS, Rung

RUNGS.add(
    "defer_and_fuse",
    Rung(
        name="defer_and_fuse",
        summary="ops recorded, cut into segments, one program each",
        change=lambda plan: plan.with_changes(engine="xla", mode="defer_and_fuse"),
    ),
)
