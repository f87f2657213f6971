"""Activation functions and their gradients against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.against_torch import check, check_all, sample

F32, BF16 = torch.float32, torch.bfloat16

FORWARD: list[tuple[Any, ...]] = [
    ("relu",), ("silu",), ("mish",), ("hardsigmoid",), ("hardswish",), ("leaky_relu", 0.2),
    ("elu", 1.5, 1.1, 0.7), ("celu", 1.3), ("hardtanh", -0.5, 0.7), ("softplus", 2, 3),
    ("softshrink", 0.4), ("hardshrink", 0.4), ("threshold", 0.3, -1.0), ("glu", -1),
    ("log_sigmoid_forward",), ("gelu",),
]  # fmt: skip
BACKWARD: list[tuple[Any, ...]] = [
    ("silu_backward",), ("mish_backward",), ("hardsigmoid_backward",), ("hardswish_backward",),
    ("leaky_relu_backward", 0.2, False), ("hardtanh_backward", -0.5, 0.7),
    ("softplus_backward", 2, 3), ("softshrink_backward", 0.4), ("hardshrink_backward", 0.4),
    ("threshold_backward", 0.3), ("gelu_backward",),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_forward(dtype: torch.dtype) -> None:
    check_all([(op, (sample(3, 8, dtype=dtype), *rest)) for op, *rest in FORWARD])
    plain = [c for c in FORWARD if c[0] not in ("glu", "log_sigmoid_forward")]
    check_all([(op, (sample(0, dtype=dtype), *rest)) for op, *rest in plain])


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_backward(dtype: torch.dtype) -> None:
    grad, x = sample(3, 8, dtype=dtype, seed=1), sample(3, 8, dtype=dtype)
    check_all([(op, (grad, x, *rest)) for op, *rest in BACKWARD])
    check("logit_backward", grad, sample(3, 8, dtype=dtype, low=0.1, high=0.9))


@pytest.mark.parametrize("op", ["sigmoid_backward", "tanh_backward"])
def test_backward_from_the_output(op: str) -> None:
    check(op, sample(3, 4), sample(3, 4, low=0, high=1, seed=1))
    check(op, sample(3, dtype=BF16), sample(3, dtype=BF16, low=0, high=1, seed=1))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [F32, BF16, torch.float64])
def test_gelu(approximate: str, dtype: torch.dtype) -> None:
    x = sample(3, 8, dtype=dtype)
    check("gelu", x, approximate=approximate)
    check("gelu_backward", sample(3, 8, dtype=dtype, seed=1), x, approximate=approximate)


@pytest.mark.parametrize("is_result", [True, False])
def test_elu_backward(is_result: bool) -> None:
    x = sample(9, low=-0.9)
    check("elu_backward", sample(9, seed=1), 1.2, 1.1, 0.7, is_result, x)


def test_the_rest() -> None:
    x, grad = sample(3, 8), sample(3, 8, seed=1)
    check("glu_backward", sample(3, 4), x, -1)
    check("_prelu_kernel", x, sample(8))
    check("_prelu_kernel_backward", grad, x, sample(8).expand(3, 8).contiguous())
    _, buffer = torch.ops.aten.log_sigmoid_forward(x)
    check("log_sigmoid_backward", grad, x, buffer)
    for op in ("relu", "silu", "gelu", "softplus", "mish", "hardshrink", "softshrink"):
        check(op, torch.tensor([0.0, -0.0, float("nan"), 100.0, -100.0]))
    check("relu", sample(5, dtype=torch.int64))
