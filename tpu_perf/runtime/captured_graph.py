"""A compiled graph as one op of a whole step: its forward and backward become part of the step's
program, so that what AOTAutograd chose to compute again holds there too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import torch

from tpu_perf.errors import WorkloadError
from tpu_perf.runtime.buffers import buffer_of
from tpu_perf.runtime.call_plan import CallPlan, Fresh
from tpu_perf.runtime.plan_building import store_order
from tpu_perf.runtime.segment import current_segment
from tpu_perf.runtime.views import ViewPlan, view_plan

if TYPE_CHECKING:
    from tpu_perf.runtime.compiled_graph import CompiledGraph


def record_graph(graph: CompiledGraph, inputs: Sequence[Any]) -> list[Any]:
    """Record the graph into the step that is being captured; returns its results, still pending.

    Raises WorkloadError for graphs that read or return values of the host, or draw several times.
    """
    if graph.on_host.positions or graph.draws > 1 or any(
        isinstance(v, torch.Tensor) and v.device.type != "tpu" for v in inputs
    ):  # fmt: skip
        raise WorkloadError(
            f"{graph.name}: a compiled graph that uses tensors of the CPU or draws random numbers "
            "more than once cannot be part of a whole step",
            hint="use program: whole_step, or set dropout to 0",
        )
    tensors = [v for v in inputs if isinstance(v, torch.Tensor)]
    buffers = [buffer_of(v) for v in tensors]
    views: list[ViewPlan | Any] = [
        view_plan(buffer_of(v).spec, v.dtype, tuple(v.shape), tuple(v.stride()),
                  v.storage_offset(), v.is_conj(), v.is_neg())
        if isinstance(v, torch.Tensor) else v
        for v in inputs
    ]  # fmt: skip
    key = tuple(v.text if isinstance(v, ViewPlan) else v for v in views)
    plan = graph.captured.get(key)
    if plan is None:
        plan = graph.captured[key] = _plan(graph, views, [b.spec for b in buffers], key)
    made = iter(current_segment().record(plan, buffers, (), tensors))
    results: list[Any] = []
    for i, (handed_on, output) in enumerate(zip(graph.handed_on, graph.outputs, strict=True)):
        if handed_on is not None:
            result = inputs[handed_on]
        elif output is not None:
            result = next(made)
        else:
            result = graph.constant[i]
        if i in graph.writes:
            inputs[graph.writes[i]].copy_(result)
        else:
            results.append(result)
    return results


def _plan(graph: CompiledGraph, views: list[Any], specs: list[Any], key: Any) -> CallPlan:
    computed = [
        (i, output[0])
        for i, (handed_on, output) in enumerate(zip(graph.handed_on, graph.outputs, strict=True))
        if handed_on is None and output is not None
    ]
    fresh: tuple[Fresh, ...] = tuple(made for _, made in computed)

    def compute(*arrays: jax.Array) -> list[jax.Array]:
        feed = iter(arrays)
        values = [v.read(next(feed)) if isinstance(v, ViewPlan) else v for v in views]
        seed, offset = (next(feed), next(feed)) if graph.draws else (None, None)
        results = graph.evaluator(values, seed, offset, scoped=False)
        return [store_order(results[i], made) for i, made in computed]

    return CallPlan(
        op=f"graph::{graph.name}", key_text=f"graph({key})\n{graph.text}", slots=tuple(specs),
        number_kinds=(), random=bool(graph.draws), compute=compute,
        reads=tuple(range(len(specs))), fresh=fresh, mutated=(),
        returns=[("fresh", k) for k in range(len(fresh))],
        bytes_in=sum(spec.nbytes for spec in specs),
        bytes_out=sum(made.spec.nbytes for made in fresh),
    )  # fmt: skip
