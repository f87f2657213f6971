"""Evaluate an FX graph of aten ops with the lowering table: the one interpreter of all graphs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from tpu_perf.runtime.lowerings.registry import (
    TABLE,
    Call,
    TensorMeta,
    as_array,
    draws_numbers,
)

Special = Callable[..., Any]
#: Non-aten targets that graphs contain.
SPECIAL: dict[Any, Special] = {
    operator.getitem: operator.getitem,
    operator.add: operator.add,
    operator.mul: operator.mul,
}


def table_name(op: Any) -> str | None:
    """The table's name of a graph target, None if it is not an aten overload."""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
        return None
    name = op._name.removeprefix("aten::")
    return name if "." in name else f"{name}.default"


def missing_ops(module: torch.fx.GraphModule) -> set[str]:
    """Targets of the graph that the table has no lowering for."""
    missing = set()
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target in SPECIAL:
            continue
        name = table_name(node.target)
        if name is None or name not in TABLE:
            missing.add(name or str(node.target))
    return missing


def random_draws(module: torch.fx.GraphModule) -> int:
    """How many draws from the generator one run of the graph makes."""
    return sum(1 for node in module.graph.nodes if node.op == "call_function" and _draws(node))


def _draws(node: torch.fx.Node) -> bool:
    name = table_name(node.target)
    if name not in TABLE:
        return False
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given |= dict(zip((a.name for a in arguments), node.args, strict=False))
    return draws_numbers(TABLE[name], {**given, **node.kwargs})


class GraphEvaluator:
    """Calls like a function from input arrays to output arrays (None outputs stay None)."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.nodes = list(module.graph.nodes)
        self.constants = _constants(module)

    def __call__(self, inputs: Sequence[Any], seed: Any = None, offset: Any = None) -> list[Any]:
        env: dict[torch.fx.Node, Any] = {}
        feed = iter(inputs)
        draws = 0

        def value(argument: Any) -> Any:
            return torch.fx.map_arg(argument, lambda n: env[n])

        for node in self.nodes:
            if node.op == "placeholder":
                env[node] = next(feed, None)
            elif node.op == "get_attr":
                constant = self.constants[node.target]
                is_array = isinstance(constant, np.ndarray)
                env[node] = jnp.asarray(constant) if is_array else constant
            elif node.op == "output":
                return [
                    None if v is None else v
                    for v in torch.utils._pytree.tree_leaves(
                        value(node.args[0]), is_leaf=lambda x: x is None
                    )
                ]
            elif node.target in SPECIAL:
                env[node] = SPECIAL[node.target](*value(node.args))
            else:
                lowering = TABLE[table_name(node.target) or ""]
                here = None
                if _draws(node):
                    here, draws = offset + draws, draws + 1
                call = Call(str(node.target), _metas(node), seed, here, {"node": node},
                            _contiguous(node))  # fmt: skip
                args, kwargs = value(node.args), value(node.kwargs)
                kwargs = {k: v for k, v in kwargs.items() if k != "generator"}
                env[node] = _fit(lowering.lower(call, *args, **kwargs), node)
        raise AssertionError("a graph without an output node")


def _constants(module: torch.fx.GraphModule) -> dict[str, Any]:
    """Attributes that the graph reads: tensors as host arrays, other objects as they are."""
    from tpu_perf.runtime.transfers import to_host_array

    found: dict[str, Any] = {}
    for node in module.graph.nodes:
        if node.op != "get_attr":
            continue
        value: Any = module
        for part in node.target.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor):
            with _disable_current_modes():
                value = to_host_array(value.cpu())
        found[node.target] = value
    return found


def _metas(node: torch.fx.Node) -> tuple[TensorMeta, ...]:
    value = node.meta.get("val")
    leaves = torch.utils._pytree.tree_leaves(value)
    return tuple(
        TensorMeta(tuple(int(s) for s in v.shape), v.dtype)
        for v in leaves
        if isinstance(v, torch.Tensor)
    )


def _contiguous(node: torch.fx.Node) -> tuple[bool, ...]:
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return tuple(v.is_contiguous() for v in values if isinstance(v, torch.Tensor))


def _fit(result: Any, node: torch.fx.Node) -> Any:
    """Cast a lowering's results to the dtypes and shapes that torch's fakes have."""
    from tpu_perf.runtime.plan_building import cast

    value = node.meta.get("val")

    def fit(item: Any, meta: Any) -> Any:
        if not isinstance(meta, torch.Tensor) or item is None:
            return item
        wanted = TensorMeta(tuple(int(s) for s in meta.shape), meta.dtype)
        array: jax.Array = as_array(item)
        if array.dtype != wanted.jax_dtype:
            array = cast(array, wanted.jax_dtype)
        if array.shape != wanted.shape:
            array = (
                array.reshape(wanted.shape)
                if array.size == meta.numel()
                else jnp.broadcast_to(array, wanted.shape)
            )
        return array

    if isinstance(value, (tuple, list)):
        items = list(result) if isinstance(result, (tuple, list)) else [result]
        return [fit(i, m) for i, m in zip(items, value, strict=True)]
    if isinstance(result, (tuple, list)) and isinstance(value, torch.Tensor):
        result = result[0]
    return fit(result, value)
