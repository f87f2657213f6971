"""Graphs with symbolic shapes: Dynamo traces them once, each shape gets a static graph of its own.

XLA has no dynamic shapes worth using. A graph made with dynamic=True or mark_dynamic is traced
again by fakes of the shapes it is called with, so that nothing in it is symbolic any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tpu_perf.runtime.compiled_parts import retraced
from tpu_perf.runtime.recompiles import Form, Origin, differences, form_of

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def has_symbols(module: torch.fx.GraphModule) -> bool:
    """Whether the graph was traced with any size that is not a number."""
    return any(
        _is_symbolic(leaf)
        for node in module.graph.nodes
        for leaf in torch.utils._pytree.tree_leaves(node.meta.get("val"))
    )


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(
            isinstance(s, torch.SymInt)
            for s in (*value.shape, *value.stride(), value.storage_offset())
        )
    return isinstance(value, _SYMBOLIC)


class ShapedGraphs:
    """A symbolic graph as static ones, by the shapes and numbers it is called with."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        origin: Origin,
        build: Callable[[torch.fx.GraphModule, Origin], Any],
    ) -> None:
        self.module = module
        self.origin = origin
        self.build = build
        self.names = origin.input_names(module)
        self.last: list[Form] = []
        self.graphs: dict[Any, Callable[..., list[Any]]] = {}

    def __call__(self, *inputs: Any) -> list[Any]:
        key = tuple([
            (v.shape, v.stride(), v.dtype, v.device) if isinstance(v, torch.Tensor)
            else (v.__class__, v)
            for v in inputs
        ])  # fmt: skip
        graph = self.graphs.get(key)
        if graph is None:
            graph = self.graphs[key] = self._static(inputs)
        return graph(*inputs)

    def _static(self, inputs: Sequence[Any]) -> Callable[..., list[Any]]:
        forms = [form_of(v) for v in inputs]
        why = self.origin.why
        if self.graphs:
            why = self.origin.recompiled("sizes", differences(self.names, self.last, forms))
        self.last = forms
        graph: Callable[..., list[Any]] = self.build(
            retraced(self.module, inputs, {}), replace(self.origin, why=why)
        )
        return graph
