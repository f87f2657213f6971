"""Whether a compiled program does the work that was asked for; a prediction refuses itself if not.

A part of a module that was dropped or counted twice while reading once gave 99 % MFU.
"""

from __future__ import annotations

from dataclasses import dataclass

from tpu_perf.errors import TpuPerfError
from tpu_perf.hlo.cost import costs
from tpu_perf.hlo.module import Module, read_module
from tpu_perf.predict.compiled import Compiled
from tpu_perf.predict.instruction_time import matmul_flops

TOLERANCE = 0.01
_MOST_NAMED = 5


class PredictionRefused(TpuPerfError):
    """The compiled program's FLOPs are not those that were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulCount:
    """Matrix multiplications of one execution; `uncounted` names loops of unknown length."""

    flops: float
    rows: tuple[tuple[str, float], ...]
    uncounted: tuple[str, ...] = ()


def count_matmuls(module: Module) -> MatmulCount:
    """FLOPs of all matrix multiplications of one execution, loops included."""
    by_name = {
        one.name: one for computation in module.computations for one in computation.instructions
    }
    rows, uncounted = [], []
    for row in costs(module):
        each = matmul_flops(by_name[row.instruction])
        if not each:
            continue
        if row.trip_count is None:
            uncounted.append(row.instruction)
        else:
            rows.append((row.instruction, each * row.trip_count))
    rows.sort(key=lambda one: -one[1])
    return MatmulCount(
        flops=sum(flops for _, flops in rows), rows=tuple(rows), uncounted=tuple(uncounted)
    )


def check_flops(compiled: Compiled, analytic_flops: float | None = None) -> MatmulCount:
    """The matrix multiplications of a compiled program on one device, checked.

    `analytic_flops` of one device, by hand or from the recorded ops; if None, those of the module
    before any pass, shared evenly among the partitions. Raises PredictionRefused where they differ
    by more than 1 %.
    """
    found = count_matmuls(read_module(compiled.hlo))
    if found.uncounted:
        raise PredictionRefused(
            f"{compiled.name}: nobody knows how often %{found.uncounted[0]} runs, so its work "
            "cannot be counted",
            hint="a loop whose length depends on data needs a fixed number of iterations",
        )
    if analytic_flops is None:
        asked = count_matmuls(read_module(compiled.unoptimised))
        if asked.uncounted:
            return found
        analytic_flops = asked.flops / compiled.partitions
    if abs(found.flops - analytic_flops) > TOLERANCE * max(analytic_flops, 1.0):
        largest = ", ".join(f"%{name} {flops:.4g}" for name, flops in found.rows[:_MOST_NAMED])
        raise PredictionRefused(
            f"{compiled.name}: the compiled program multiplies matrices for {found.flops:.4g} "
            f"FLOPs on each device, {analytic_flops:.4g} were asked for "
            f"({found.flops / max(analytic_flops, 1.0) - 1:+.1%})",
            hint=f"largest: {largest}" if largest else "it has no matrix multiplication",
        )
    return found
