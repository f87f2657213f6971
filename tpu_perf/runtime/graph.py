"""Evaluate an FX graph of aten ops with the lowering table: the one interpreter of all graphs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch.utils._python_dispatch import _disable_current_modes

from tpu_perf.runtime.lowerings.registry import (
    TABLE,
    Call,
    Lowering,
    TensorMeta,
    as_array,
    draws_numbers,
)
from tpu_perf.runtime.replaying import op_scope
from tpu_perf.runtime.signatures import functional_form

Special = Callable[..., Any]
#: Non-aten targets that graphs contain.
SPECIAL: dict[Any, Special] = {
    operator.getitem: operator.getitem,
    operator.add: operator.add,
    operator.mul: operator.mul,
}


def table_name(op: Any) -> str | None:
    """The table's name of a graph target, None if it is neither an aten overload nor a prim."""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace not in ("aten", "prims"):
        return None
    name = op._name.removeprefix("aten::")
    return name if "." in name else f"{name}.default"


@functools.cache
def lowering_of(op: Any) -> tuple[Lowering, bool] | None:
    """The lowering of a graph target, and whether it runs once for each element of tensor lists.

    A functional form of an op that the table has only in place is that one: it returns what the
    other writes.
    """
    name = table_name(op)
    if name is None:
        return None
    if name in TABLE:
        return TABLE[name], False
    if op._schema.is_mutable:
        return None
    base, _, overload = name.partition(".")
    written = TABLE.get(f"{base}_.{overload}")
    if written is not None and written.mutates:
        return written, False
    element, foreach = functional_form(op)
    return (TABLE[element], True) if foreach else None


def missing_ops(module: torch.fx.GraphModule) -> set[str]:
    """Targets of the graph that the table has no lowering for."""
    return {name for node in module.graph.nodes for name in missing_of(node, module)}


def missing_of(node: torch.fx.Node, module: torch.fx.GraphModule) -> set[str]:
    """What the table lacks to compute one node."""
    if node.op != "call_function" or node.target in SPECIAL:
        return set()
    if node.target in CONTROL_FLOW:
        missing = set()
        for branch in branches_of(node, module):
            missing |= missing_ops(branch)
            if random_draws(branch):
                missing.add(f"random numbers inside {node.target}")
        return missing
    if lowering_of(node.target) is not None:
        return set()
    return {table_name(node.target) or str(node.target)}


def random_draws(module: torch.fx.GraphModule) -> int:
    """How many draws from the generator one run of the graph makes."""
    return sum(1 for node in module.graph.nodes if node.op == "call_function" and _draws(node))


def _draws(node: torch.fx.Node) -> bool:
    found = lowering_of(node.target)
    if found is None:
        return False
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given |= dict(zip((a.name for a in arguments), node.args, strict=False))
    return draws_numbers(found[0], {**given, **node.kwargs})


def each_element(
    lowering: Lowering, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Run a lowering for each element of the tensor lists among its arguments."""
    count = len(next(a for a in args if isinstance(a, list)))

    def at(index: int, argument: Any) -> Any:
        return argument[index] if isinstance(argument, list) else argument

    return [
        lowering.lower(
            Call(call.op, (call.out[i],), call.seed, call.offset),
            *(at(i, a) for a in args),
            **{k: at(i, v) for k, v in kwargs.items()},
        )
        for i in range(count)
    ]


def branches_of(node: torch.fx.Node, module: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """The graphs that a control flow op chooses from or repeats."""
    found = [
        getattr(module, str(a.target)) for a in node.args
        if isinstance(a, torch.fx.Node) and a.op == "get_attr"
    ]  # fmt: skip
    return [f for f in found if isinstance(f, torch.fx.GraphModule)]


def _cond(
    predicate: Any, if_true: GraphEvaluator, if_false: GraphEvaluator, operands: Sequence[Any] = ()
) -> list[Any]:
    if isinstance(predicate, bool):
        return (if_true if predicate else if_false)(operands)
    chosen = lax.cond(predicate.reshape(()), if_true, if_false, list(operands))
    return list(chosen)


def _while_loop(
    condition: GraphEvaluator, body: GraphEvaluator, carried: Sequence[Any],
    additional: Sequence[Any] = (),
) -> list[Any]:  # fmt: skip
    start = [jnp.asarray(c) for c in carried]

    def step(values: list[Any]) -> list[Any]:
        made = body([*values, *additional])
        return [jnp.asarray(m, s.dtype) for m, s in zip(made, start, strict=True)]

    return lax.while_loop(
        lambda values: condition([*values, *additional])[0].reshape(()), step, start
    )


#: Control flow whose branches are graphs of their own.
CONTROL_FLOW: dict[Any, Special] = {
    torch.ops.higher_order.cond: _cond,
    torch.ops.higher_order.while_loop: _while_loop,
}


class GraphEvaluator:
    """Calls like a function from input arrays to output arrays (None outputs stay None)."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = module
        self.nodes = list(module.graph.nodes)
        self.constants = _constants(module)

    def __call__(
        self, inputs: Sequence[Any], seed: Any = None, offset: Any = None, scoped: bool = True
    ) -> list[Any]:
        """`scoped`: whether XLA's instructions get the names of the graph's ops."""
        env: dict[torch.fx.Node, Any] = {}
        feed = iter(inputs)
        draws = 0
        position = -1

        def value(argument: Any) -> Any:
            return torch.fx.map_arg(argument, lambda n: env[n])

        for node in self.nodes:
            position += node.op == "call_function"
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
            elif node.target in CONTROL_FLOW:
                env[node] = CONTROL_FLOW[node.target](*value(node.args))
            else:
                found = lowering_of(node.target)
                assert found is not None
                here = None
                if _draws(node):
                    here, draws = offset + draws, draws + 1
                call = Call(str(node.target), _metas(node), seed, here, {"node": node},
                            _contiguous(node))  # fmt: skip
                args, kwargs = value(node.args), value(node.kwargs)
                kwargs = {k: v for k, v in kwargs.items() if k != "generator"}
                with jax.named_scope(op_scope(position)) if scoped else nullcontext():
                    result = (
                        each_element(found[0], call, args, kwargs) if found[1]
                        else found[0].lower(call, *args, **kwargs)
                    )  # fmt: skip
                    env[node] = _fit(result, node)
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
        if isinstance(value, torch.fx.GraphModule):
            value = GraphEvaluator(value)
        elif isinstance(value, torch.Tensor):
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

    def fit_all(found: Any, wanted: Any) -> Any:
        if isinstance(wanted, (tuple, list)):
            items = list(found) if isinstance(found, (tuple, list)) else [found]
            return [fit_all(i, m) for i, m in zip(items, wanted, strict=True)]
        if isinstance(found, (tuple, list)) and isinstance(wanted, torch.Tensor):
            found = found[0]
        return fit(found, wanted)

    return fit_all(result, value)
