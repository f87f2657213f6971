"""Run one bound call now: Strict (asynchronous) and Debug (blocking and checked)."""

from __future__ import annotations

from typing import Any

import jax

from tpu_perf.runtime.binding import Bound
from tpu_perf.runtime.call_description import of_plan
from tpu_perf.runtime.call_plan import CallPlan, assemble
from tpu_perf.runtime.program_cache import CACHE, Program


def op_program(plan: CallPlan, donated: tuple[int, ...]) -> Program:
    """The program of a single op; `donated` are positions among its inputs."""
    program: Program | None = plan.programs.get(donated)
    if program is None:
        program = plan.programs[donated] = CACHE.build(
            name=plan.op,
            kind="op",
            ops=1,
            key_text=plan.key_text,
            compute=_as_tuple(plan.compute),
            in_avals=plan.in_avals(),
            donated=donated,
            parts=lambda: [of_plan(plan)],
        )
    return program


def _as_tuple(compute: Any) -> Any:
    def run(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(compute(*arguments))

    return run


def run_now(
    plan: CallPlan, bound: Bound, donates: bool = True
) -> tuple[Any, tuple[jax.Array, ...], Program | None]:
    """Enqueue the op's program; returns its result, raw output arrays and the program. With
    `donates` false the arrays that it replaces stay readable."""
    buffers = bound.buffers
    read = [buffers[slot] for slot in plan.reads]
    arrays: list[Any] = [
        b.array if b.array is not None and b.segment is None else b.ready("unknown") for b in read
    ]
    written = plan.written
    donated: tuple[int, ...] = ()
    if written and donates:
        donated = tuple(
            [i for i, s in enumerate(plan.reads) if s in written and not buffers[s].shared]
        )
    program = plan.programs.get(donated) or op_program(plan, donated)
    if bound.numbers:
        arrays += bound.numbers
    if plan.random:
        arrays += bound.draws.take()
    outs = program.run(*arrays)
    return take_outputs(plan, bound, outs), outs, program


def take_outputs(plan: CallPlan, bound: Bound, outs: tuple[jax.Array, ...]) -> Any:
    """Turn a program's output arrays into the op's result; writes replaced arrays."""
    fresh = [output.tensor(array) for output, array in zip(plan.fresh, outs, strict=False)]
    first = len(fresh)
    for slot in plan.mutated:
        buffer = bound.buffers[slot]
        buffer.segment = None
        if buffer.counted:  # `fill`, written out
            buffer.array = outs[first]
            buffer.shared = False
        else:
            buffer.fill(outs[first])
        first += 1
    return assemble(plan.returns, fresh, bound.tensors)
