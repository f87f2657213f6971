"""Inputs that a compiled graph writes, and the few values that it keeps on the host.

A compiled optimizer writes every parameter and its state, and counts steps in 0-dim CPU tensors.
A copy per written tensor and a transfer per count would cost more than all of its program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.graph_ends import input_nodes, output_node

_COPY = torch.ops.aten.copy_.default


def take_writes(module: torch.fx.GraphModule) -> list[int]:
    """Take the copies into inputs out of a graph: positions of the inputs that are written. The
    new values are appended to the graph's outputs, in that order."""
    position = {n: i for i, n in enumerate(input_nodes(module))}
    written: list[int] = []
    values: list[torch.fx.Node] = []
    for node in module.graph.find_nodes(op="call_function", target=_COPY):
        target, value = node.args[:2]
        if target not in position or not isinstance(value, torch.fx.Node):
            continue
        written.append(position[target])
        values.append(value)
        node.replace_all_uses_with(target)
        module.graph.erase_node(node)
    if written:
        output = output_node(module)
        returned: Any = output.args[0]
        output.args = ([*returned, *values],)
    return written


@dataclass(frozen=True, slots=True)
class HostScalar:
    """An input that is a 0-dim CPU tensor: its value travels in an array with the others of its
    dtype."""

    dtype: torch.dtype


#: Dtypes whose values Python's numbers carry exactly.
_CARRIED = {
    torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.float16, torch.uint8,
    torch.int8, torch.int16, torch.complex64, torch.complex128,
}  # fmt: skip


def host_scalar(value: torch.Tensor) -> HostScalar | None:
    """What stands for a tensor that need not become an array of its own."""
    if value.device.type == "cpu" and value.dim() == 0 and value.dtype in _CARRIED:
        return HostScalar(value.dtype)
    return None


def packed(scalars: dict[torch.dtype, list[torch.Tensor]]) -> list[np.ndarray[Any, Any]]:
    """One array a dtype, in the order in which the dtypes were met."""
    return [
        np.array([v.item() for v in values], numpy_dtype(dtype))
        for dtype, values in scalars.items()
    ]


class HostOutputs:
    """Outputs of a graph that stay on the host and depend on nothing but its CPU inputs, such as
    step counts: torch computes them there, and no one waits for the device."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.positions: list[int] = []
        inputs = input_nodes(module)
        outputs = output_node(module).args[0]
        wanted = [
            (i, o) for i, o in enumerate(torch.utils._pytree.tree_leaves(outputs))
            if isinstance(o, torch.fx.Node) and o.op == "call_function" and _on_host(o, {})
        ]  # fmt: skip
        if not wanted:
            return
        graph = torch.fx.Graph()
        made: dict[torch.fx.Node, torch.fx.Node] = {}
        needed = _needed([o for _, o in wanted])
        self.inputs = [i for i, n in enumerate(inputs) if n in needed]
        for node in module.graph.nodes:
            if node in needed:
                made[node] = graph.node_copy(node, made.__getitem__)
        graph.output([made[o] for _, o in wanted])
        self.positions = [i for i, _ in wanted]
        self._run: Callable[..., list[torch.Tensor]] = torch.fx.GraphModule({}, graph).forward

    def __call__(self, inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
        """The outputs by position."""
        if not self.positions:
            return {}
        results = self._run(*[inputs[i] for i in self.inputs])
        return dict(zip(self.positions, results, strict=True))


def _on_host(node: torch.fx.Node, known: dict[torch.fx.Node, bool]) -> bool:
    found = known.get(node)
    if found is None:
        values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
        found = all(isinstance(v, torch.Tensor) and v.device.type == "cpu" for v in values)
        if node.op == "call_function":
            found = found and _is_plain(node.target)
            found = found and all(_on_host(n, known) for n in node.all_input_nodes)
        elif node.op != "placeholder":
            found = False
        known[node] = found
    return found


def _is_plain(target: Any) -> bool:
    """Whether torch on the host computes what the program would: no random numbers."""
    if isinstance(target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded not in target.tags
    return target is operator.getitem


def _needed(outputs: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    needed: set[torch.fx.Node] = set()
    todo = list(outputs)
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo += node.all_input_nodes
    return needed
