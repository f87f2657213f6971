"""A string of recorded ops as one function of arrays: what XLA sees of a segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from tpu_perf.runtime.call_description import Part, of_plan
from tpu_perf.runtime.call_plan import CallPlan
from tpu_perf.runtime.random_numbers import Draws

#: Seed and offset of a draw, and whose it is.
Draw = tuple[int, int, Draws]

Node = tuple[CallPlan, tuple[int, ...], tuple[int, ...]]  # plan, inputs, outputs (value ids)

_KIND_ARRAYS: tuple[tuple[type, Any], ...] = (
    (float, np.float64), (int, np.int64), (bool, np.bool_), (complex, np.complex128),
)  # fmt: skip


def pack(numbers: list[tuple[Any, ...]], draws: list[Draw]) -> list[np.ndarray[Any, Any]]:
    """Numbers by kind, then seed and offset of every draw."""
    flat = [n for group in numbers for n in group]
    packed = []
    for kind, dtype in _KIND_ARRAYS:
        chosen = [n for n in flat if type(n) is kind]
        if chosen:
            packed.append(np.array(chosen, dtype))
    if draws:
        packed.append(np.array([word for draw in draws for word in draw[:2]], np.int64))
    return packed


class Holds(Protocol):
    """What ties values of a program to places on a mesh."""

    def at_use(self, position: int, value: int, array: Any) -> Any:
        """The value as the op at this position reads it."""
        ...

    def at_birth(self, value: int, array: Any) -> Any:
        """The value as the op that makes it leaves it."""
        ...


def replay(
    nodes: list[Node], input_values: list[int], wanted: tuple[int, ...], draws: bool,
    holds: Holds | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """A function that runs the nodes on arrays: what XLA sees of a segment."""
    steps = [(plan.compute, plan.number_kinds, plan.random, ids, outs)
             for plan, ids, outs in nodes]  # fmt: skip
    kinds = {k for _, number_kinds, *_ in steps for k in number_kinds}

    def run(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        env = dict(zip(input_values, arguments, strict=False))
        rest = list(arguments[len(input_values) :])
        feeds = {kind: _unpack(rest.pop(0)) for kind, _ in _KIND_ARRAYS if kind in kinds}
        random = _unpack(rest.pop(0)) if draws else None
        for position, (compute, number_kinds, is_random, ids, outs) in enumerate(steps):
            inputs: list[Any] = [env[i] for i in ids]
            if holds is not None:
                inputs = [holds.at_use(position, i, env[i]) for i in ids]
            inputs += [next(feeds[k]) for k in number_kinds]
            if is_random and random is not None:
                inputs += [next(random), next(random)]
            with jax.named_scope(op_scope(position)):
                made = compute(*inputs)
                if holds is not None:
                    made = [holds.at_birth(i, m) for i, m in zip(outs, made, strict=True)]
                env.update(zip(outs, made, strict=True))
        return tuple(env[v] for v in wanted)

    return run


def op_scope(position: int) -> str:
    """The name that XLA's instructions bear of the op at this position in its program, so that
    what ran on the device is found again in `program_ops`."""
    return f"op{position}"


def parts_of(plans: list[CallPlan]) -> Callable[[], list[Part]]:
    """The ops of a program that runs these plans."""
    return lambda: [of_plan(plan) for plan in plans]


def _unpack(array: jax.Array) -> Any:
    return (array[i] for i in range(array.shape[0]))
