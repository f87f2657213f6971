"""Fused optimizer steps and gradient scaling against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.against_torch import check, check_mutation, sample

ADAM: dict[str, Any] = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8}
SGD: dict[str, Any] = {"weight_decay": 0.1, "momentum": 0.9, "lr": 0.01, "dampening": 0.2}


def _lists(count: int) -> list[list[torch.Tensor]]:
    return [[sample(3, 4, low=0, seed=i), sample(5, low=0, seed=i)] for i in range(count)]


@pytest.mark.parametrize("op", ["_fused_adam_", "_fused_adamw_"])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("step", [1.0, 1000.0])
def test_adam(op: str, amsgrad: bool, step: float) -> None:
    lists = _lists(5) if amsgrad else [*_lists(4), []]
    steps = [torch.tensor(step), torch.tensor(step)]
    flags: dict[str, Any] = {"amsgrad": amsgrad, "maximize": amsgrad}
    check_mutation(op, (0, 1, 2, 3, 4), *lists, steps, **ADAM, **flags, tolerance=2e-6)


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_adam_with_scaled_gradients_and_a_tensor_rate(found: float) -> None:
    steps = [torch.tensor(3.0), torch.tensor(3.0)]
    options: dict[str, Any] = {**ADAM, "lr": torch.tensor(0.01), "amsgrad": False,
                               "maximize": False, "grad_scale": torch.tensor(4.0),
                               "found_inf": torch.tensor(found)}  # fmt: skip
    check_mutation("_fused_adamw_.tensor_lr", (0, 1, 2, 3, 4),
                   *_lists(4), [], steps, **options, tolerance=2e-6, skip=(1,) if found else ()
                   )  # fmt: skip


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("nesterov", [True, False])
def test_sgd(first: bool, nesterov: bool) -> None:
    flags: dict[str, Any] = {"nesterov": nesterov, "maximize": False, "is_first_step": first}
    check_mutation("_fused_sgd_", (0, 1, 2), *_lists(3), **SGD, **flags)
    check_mutation("_fused_sgd_", (0, 1, 2), *_lists(2), [], **{**SGD, "momentum": 0.0}, **flags)


def test_adagrad() -> None:
    steps = [torch.tensor(3.0), torch.tensor(3.0)]
    options: dict[str, Any] = {
        "lr": 0.1,
        "lr_decay": 0.01,
        "weight_decay": 0.1,
        "eps": 1e-10,
        "maximize": False,
    }
    check_mutation("_fused_adagrad_", (0, 1, 2, 3), *_lists(3), steps, **options)


@pytest.mark.parametrize("bad", [False, True])
def test_unscaling(bad: bool) -> None:
    grads = [sample(3), sample(2, 2)]
    if bad:
        grads[1][0, 0] = float("inf")
    check_mutation("_amp_foreach_non_finite_check_and_unscale_", (0, 1), grads, torch.zeros(1),
                   torch.tensor([0.5]))  # fmt: skip


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("tracker", [0, 9])
def test_updating_the_scale(found: float, tracker: int) -> None:
    check_mutation("_amp_update_scale_", (0, 1), torch.tensor([8.0]),
                   torch.tensor([tracker], dtype=torch.int32), torch.tensor([found]), 2.0, 0.5, 10
                   )  # fmt: skip


def test_lists_with_one_number_each() -> None:
    lists = _lists(3)
    numbers = torch.tensor([0.5, -2.0])
    check("_foreach_addcmul.Tensor", *lists, numbers)
    check("_foreach_addcdiv.Tensor", *lists, numbers, tolerance=1e-4)
    check("_foreach_pow.ScalarAndTensor", 2.0, lists[0])
