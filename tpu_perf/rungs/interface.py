"""A rung is a named function from Plan to Plan; the registry finds one per file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tpu_perf.record.plan import Plan
from tpu_perf.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """`change` turns the ladder's common plan into this rung's; `summary` is shown to people.
    `over_mesh`: the ladder file must give it a strategy and a mesh."""

    name: str
    summary: str
    change: Callable[[Plan], Plan]
    over_mesh: bool = False


RUNGS: Registry[Rung] = Registry("rung", "tpu_perf.rungs")
