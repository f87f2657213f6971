"""Rung `shard`: one program over a mesh of devices, by a strategy."""

from __future__ import annotations

from tpu_perf.record.plan import Plan
from tpu_perf.rungs.interface import RUNGS, Rung


def _over_the_mesh(plan: Plan) -> Plan:
    assert plan.sharding is not None, "the configuration asks for a strategy and a mesh"
    return plan.with_changes(engine="xla", mode=plan.sharding.program)


RUNGS.add(
    "shard",
    Rung(
        name="shard",
        summary="one program over a mesh of devices: ddp, fsdp, tp and more",
        change=_over_the_mesh,
        over_mesh=True,
    ),
)
