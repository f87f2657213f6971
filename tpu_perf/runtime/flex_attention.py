"""torch.nn.attention.flex_attention on device "tpu": torch's own formula of it, in every mode.

Torch keeps a list of the devices that may use it; this one is added. Eagerly torch then computes
its formula with the device's ops. A compiled graph holds forward and backward as one op each, which
stays whole while AOTAutograd decides what to keep for backward (not the scores, as with a fused
kernel), and is then taken apart into the same formula, with the caller's score_mod and mask_mod.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import (
    _flex_attention_autocast_impl,
    flex_attention,
    flex_attention_backward,
    sdpa_dense,
    sdpa_dense_backward,
)

from tpu_perf.errors import EnvironmentProblem
from tpu_perf.runtime.autocast import outside_autocast
from tpu_perf.runtime.import_hooks import when_imported


def _backward(*args: Any) -> Any:
    """Torch's formula, which has gradients only for captured tensors that are known to want one;
    in a graph none is, and every one can have one."""
    *others, captured_by_score, captured_by_mask = args
    backward: Callable[..., Any] = sdpa_dense_backward
    wanting = tuple(
        t.detach().requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
        for t in captured_by_score
    )
    with torch.no_grad():
        return backward(*others, wanting, captured_by_mask)


#: Torch's formulas, by the op of a graph that they compute.
FORMULAS: dict[Any, Callable[..., Any]] = {
    flex_attention: sdpa_dense,
    flex_attention_backward: _backward,
}


def add_device(module: types.ModuleType) -> None:
    """Let `_validate_device` of module torch.nn.attention.flex_attention pass device "tpu".

    Dynamo must be able to look into the function, so it stays torch's, with a longer constant.
    Raises EnvironmentProblem where torch keeps its list elsewhere.
    """
    function: Any = module._validate_device
    constants = function.__code__.co_consts
    if not any(isinstance(c, frozenset) and "cuda" in c for c in constants):
        raise EnvironmentProblem(
            f"torch {torch.__version__} keeps its list of devices for flex_attention elsewhere",
            hint="use the torch version that pyproject.toml names",
        )
    function.__code__ = function.__code__.replace(
        co_consts=tuple(c | {"tpu"} if isinstance(c, frozenset) else c for c in constants)
    )


class _Interpreter(torch.fx.Interpreter):
    """Runs a graph with torch's formula in the place of each flex_attention."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(FORMULAS.get(target, target), args, kwargs)


def with_formulas(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """What runs the graph and can be traced into one without flex_attention."""
    return _Interpreter(module).run


def holds_flex_attention(module: torch.fx.GraphModule) -> bool:
    return any(
        node.target in FORMULAS for part in module.modules()
        if isinstance(part, torch.fx.GraphModule) for node in part.graph.nodes
    )  # fmt: skip


def _in_autocast_dtype(*args: Any) -> Any:
    """Under torch.autocast queries, keys and values have its dtype, as on other devices."""
    with outside_autocast():
        return _flex_attention_autocast_impl(*args)


def register() -> None:
    """Make the device one of those of flex_attention, in eager, autocast and compiled code."""
    when_imported("torch.nn.attention.flex_attention", add_device)
    key: Any = torch._C._dispatch_key_parse("AutocastPrivateUse1")
    flex_attention.py_impl(key)(_in_autocast_dtype)
