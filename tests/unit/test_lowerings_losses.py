"""Losses and their gradients against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.against_torch import check, sample

F32, BF16 = torch.float32, torch.bfloat16
aten = torch.ops.aten


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_nll(reduction: int, weighted: bool, dtype: torch.dtype) -> None:
    x = sample(5, 4, dtype=dtype).log_softmax(1)
    target = torch.tensor([0, 3, -100, 1, 3])
    weight = sample(4, dtype=dtype, low=0.5, high=2) if weighted else None
    check("nll_loss_forward", x, target, weight, reduction, -100)
    out, total = aten.nll_loss_forward(x, target, weight, reduction, -100)
    check("nll_loss_backward", torch.ones_like(out), x, target, weight, reduction, -100, total)


def test_nll_of_one_sample_and_of_none() -> None:
    check("nll_loss_forward", sample(4), torch.tensor(2), None, 1, -100)
    check("nll_loss_forward", sample(3, 4), torch.full((3,), -100), None, 1, -100)
    check("nll_loss_forward", sample(3, 4), torch.tensor([1, 1, 2]), None, 1, 1)


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_nll_of_images(reduction: int) -> None:
    x, target = sample(2, 4, 3, 3), torch.randint(0, 4, (2, 3, 3))
    target[0, 0, 0] = -100
    check("nll_loss2d_forward", x, target, None, reduction, -100)
    out, total = aten.nll_loss2d_forward(x, target, None, reduction, -100)
    check("nll_loss2d_backward", torch.ones_like(out), x, target, None, reduction, -100, total)


@pytest.mark.parametrize("case", [("mse_loss",), ("smooth_l1_loss", 0.7), ("smooth_l1_loss", 0.0),
                                  ("huber_loss", 0.7), ("soft_margin_loss",)], ids=str)  # fmt: skip
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_distances(case: tuple[Any, ...], reduction: int) -> None:
    for dtype in (F32, BF16):
        x, y = sample(3, 4, dtype=dtype), sample(3, 4, dtype=dtype, seed=1)
        check(case[0], x, y, reduction, *case[1:])
        out = getattr(aten, case[0])(x, y, reduction, *case[1:])
        check(f"{case[0]}_backward", torch.ones_like(out), x, y, reduction, *case[1:])


@pytest.mark.parametrize("reduction", [0, 1])
def test_binary_cross_entropy(reduction: int) -> None:
    x, y = sample(3, 4, low=0.01, high=0.99), sample(3, 4, low=0, high=1, seed=1)
    weight = sample(3, 4, low=0.5, high=1, seed=2)
    check("binary_cross_entropy", x, y, weight, reduction)
    out = aten.binary_cross_entropy(x, y, weight, reduction)
    check("binary_cross_entropy_backward", torch.ones_like(out), x, y, weight, reduction)
    check("binary_cross_entropy_with_logits", x * 5, y, weight, sample(4, low=1, high=2),
          reduction)  # fmt: skip
    check("binary_cross_entropy", torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
