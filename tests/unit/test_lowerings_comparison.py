"""Comparisons, logic, bits and choices against torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.unit.against_torch import check, sample

I64, BF16 = torch.int64, torch.bfloat16


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(op: str) -> None:
    x = torch.tensor([1.0, math.nan, -0.0, math.inf])
    check(f"{op}.Tensor", x, torch.tensor([1.0, math.nan, 0.0, math.inf]))
    check(f"{op}.Scalar", x, 1)
    check(f"{op}.Scalar", sample(5, dtype=I64), 0.5)
    check(f"{op}.Tensor", sample(3, 4, dtype=I64), sample(4))
    check(f"{op}.Tensor", sample(4, dtype=torch.bool), sample(4, dtype=torch.bool, seed=3))


@pytest.mark.parametrize("op", ["logical_and", "logical_or", "logical_xor"])
def test_logic_of_numbers(op: str) -> None:
    check(op, torch.tensor([0.0, 2.0, math.nan, 0.0]), torch.tensor([1, 0, 3, 0]))


@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor"])
@pytest.mark.parametrize("dtype", [I64, torch.bool, torch.uint8])
def test_bits(op: str, dtype: torch.dtype) -> None:
    low = 0 if dtype is torch.uint8 else -3
    check(f"{op}.Tensor", sample(6, dtype=dtype, low=low), sample(6, dtype=dtype, low=low, seed=1))
    check(f"{op}.Scalar", sample(6, dtype=I64), 5)


@pytest.mark.parametrize("op", ["bitwise_left_shift", "bitwise_right_shift"])
@pytest.mark.parametrize("dtype", [I64, torch.int32, torch.uint8])
def test_shifts(op: str, dtype: torch.dtype) -> None:
    x = torch.tensor([1, 5, 100, 7], dtype=dtype)
    check(f"{op}.Tensor", x, torch.tensor([0, 3, 1, 2], dtype=dtype))
    check(f"{op}.Tensor_Scalar", x, 2)


@pytest.mark.parametrize("pair", [(torch.float32, BF16), (I64, torch.float32), (BF16, BF16)])
def test_where_promotes(pair: tuple[torch.dtype, torch.dtype]) -> None:
    mask = sample(3, 4, dtype=torch.bool)
    check("where.self", mask, sample(3, 4, dtype=pair[0]), sample(4, dtype=pair[1]))
    check("where.self", mask, sample(dtype=pair[0]), sample(3, 1, dtype=pair[1]))


@pytest.mark.parametrize("value", [-math.inf, 0, 3])
def test_masked_fill(value: Any) -> None:
    mask = sample(4, dtype=torch.bool)
    check("masked_fill.Scalar", sample(3, 4), mask, value)
    check("masked_fill.Scalar", sample(3, 4, dtype=BF16), mask, value)
    check("masked_fill.Tensor", sample(3, 4), mask, torch.tensor(float(value)))
