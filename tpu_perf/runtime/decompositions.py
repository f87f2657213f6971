"""Ops without a lowering of their own: PyTorch's decompositions, traced and run by the table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tpu_perf.runtime.argument_layout import Layout
from tpu_perf.runtime.binding import Bound
from tpu_perf.runtime.graph import GraphEvaluator, lowering_of, missing_ops
from tpu_perf.runtime.lowerings.registry import Number
from tpu_perf.runtime.signatures import Signature, overload
from tpu_perf.runtime.whole_ops import whole_op_decompositions

_table: dict[Any, Callable[..., Any]] | None = None


def usable_decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions, minus those of ops that the table lowers directly."""
    global _table
    if _table is None:
        merged = {
            **core_aten_decompositions(), **decomposition_table, **_composed(),
            **whole_op_decompositions(),
        }  # fmt: skip
        _table = {op: f for op, f in merged.items() if not is_lowered(op)}
    return _table


def _composed() -> dict[Any, Callable[..., Any]]:
    """Ops that torch composes of others in C++ without saying so in its decomposition table."""
    key = torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional
    ops = [torch.ops.aten.linalg_pinv.atol_rtol_tensor]
    composed: dict[Any, Callable[..., Any]] = {op: functools.partial(op._op_dk, key) for op in ops}
    return {**composed, torch.ops.aten.max_unpool2d.default: _max_unpool2d}


def _max_unpool2d(self: torch.Tensor, indices: torch.Tensor, output_size: Any) -> torch.Tensor:
    """PyTorch's, which forgets that the op's result is laid out like its input."""
    plain = decomposition_table[torch.ops.aten.max_unpool2d.default]
    made: torch.Tensor = plain(self, indices, output_size)
    kept = suggest_memory_format(self) if made.dim() == 4 else torch.contiguous_format
    return made.contiguous(memory_format=kept)


def is_lowered(op: Any) -> bool:
    """Whether the table covers this overload directly."""
    return lowering_of(op) is not None


def decomposed_evaluator(
    signature: Signature, bound: Bound, layout: Layout, written: tuple[int, ...]
) -> Callable[..., list[jax.Array]]:
    """An evaluator that runs the op's decomposition, functionalised.

    Raises NotLowered if PyTorch has no decomposition that ends in ops of the table.
    """
    from tpu_perf.runtime.plan_metas import NotLowered

    op = overload(signature.functional) or signature.op
    drop_out = signature.is_out

    def run(tensors: list[torch.Tensor], numbers: list[Any]) -> list[torch.Tensor]:
        args, kwargs = layout.fill(tensors, numbers, drop_out)
        result = op(*args, **kwargs)
        flat = [r for r in torch.utils._pytree.tree_leaves(result) if r is not None]
        if op._schema.is_mutable:
            flat = [r for r in flat if not any(r is t for t in tensors)]
            flat += [tensors[i] for i in written]
        return flat

    with FakeTensorMode(allow_non_fake_inputs=True), torch._C._DisableAutocast():
        fakes = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu")
            for t in bound.tensors
        ]
        table = usable_decompositions()
        if op not in table and not torch._C._dispatch_has_kernel_for_dispatch_key(
            op._name, "CompositeImplicitAutograd"
        ):
            raise NotLowered(f"{signature.display} has neither a lowering nor a decomposition")
        traced = make_fx(
            torch.func.functionalize(run, remove="mutations_and_views"),
            decomposition_table=table,
        )(fakes, bound.numbers)
    traced.graph.eliminate_dead_code()
    missing = missing_ops(traced)
    if missing:
        raise NotLowered(f"{signature.display} decomposes to {', '.join(sorted(missing))}, "
                         "which the device has no lowering for")  # fmt: skip
    evaluator = GraphEvaluator(traced)

    def evaluate(
        values: list[jax.Array], numbers: list[Number], seed: Any, offset: Any
    ) -> list[jax.Array]:
        return evaluator(list(values), seed, offset)

    return evaluate


def decompositions_for_compile() -> Mapping[Any, Callable[..., Any]]:
    """What AOTAutograd may take apart before the graph reaches the table."""
    return usable_decompositions()
