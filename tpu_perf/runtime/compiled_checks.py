"""Checks that a compiled graph carries, such as that of a singular matrix: made after it has run.

A program cannot raise. What a check looks at becomes an output of its program, which is then read
as in the eager modes, and torch raises its own error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tpu_perf.runtime.graph_ends import output_node

with_effects = torch._higher_order_ops.effects.with_effects


def _linalg(info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    torch._linalg_check_errors(info, api_name, is_matrix=is_matrix)


#: Ops without results that only raise, and what makes them on the host.
CHECKS: dict[Any, Callable[..., None]] = {
    torch.ops.aten._linalg_check_errors.default: _linalg,
    torch.ops.aten._assert_async.default: torch.ops.aten._assert_async.default,
    torch.ops.aten._assert_async.msg: torch.ops.aten._assert_async.msg,
}


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a graph; its tensor is an extra output of the graph."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def make(self, value: torch.Tensor) -> None:
        """Raise what torch raises for this value."""
        CHECKS[self.op](value.cpu(), *self.args, **self.kwargs)


def take_checks(module: torch.fx.GraphModule) -> list[Check]:
    """Take the checks out of a graph; what they look at is appended to its outputs."""
    checks: list[Check] = []
    tensors: list[torch.fx.Node] = []
    for node in module.graph.find_nodes(op="call_function", target=with_effects):
        token, op, tensor, *rest = node.args
        if op not in CHECKS:
            continue
        checks.append(Check(op, tuple(rest), dict(node.kwargs)))
        tensors.append(tensor)
        for user in list(node.users):  # the token that orders effects; there is no result
            user.replace_all_uses_with(token)
            module.graph.erase_node(user)
        module.graph.erase_node(node)
    for node in list(module.graph.nodes):  # those that torch orders by nothing
        if node.op == "call_function" and node.target in CHECKS:
            tensor, *rest = node.args
            checks.append(Check(node.target, tuple(rest), dict(node.kwargs)))
            tensors.append(tensor)
            module.graph.erase_node(node)
    if checks:
        output = output_node(module)
        returned: Any = output.args[0]
        output.args = ([*returned, *tensors],)
    return checks


def make_checks(checks: Sequence[Check], results: list[Any]) -> list[Any]:
    """Raise what the checks find in the last results of a graph; returns those before."""
    if not checks:
        return results
    for check, value in zip(checks, results[-len(checks) :], strict=True):
        check.make(value)
    return results[: -len(checks)]
