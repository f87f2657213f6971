"""Arithmetic against torch: promotion, broadcasting, signs and rounding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.unit.against_torch import check, check_all, sample

F32, BF16, I64, F64 = torch.float32, torch.bfloat16, torch.int64, torch.float64
SIGNED = torch.tensor([7.0, -7.0, 7.0, -7.0, 0.0, -0.0, 1.5, -1.5, 6.0, 1e10])
DIVISOR = torch.tensor([3.0, 3.0, -3.0, -3.0, 2.0, -2.0, 0.5, 0.5, 2.0, 3.0])


PAIRS = [
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "minimum", "fmod.Tensor",
    "remainder.Tensor", "floor_divide", "atan2", "fmax", "fmin",
]  # fmt: skip
WITH_NUMBER = ["add.Tensor", "mul.Tensor", "div.Tensor", "pow.Tensor_Scalar"]


@pytest.mark.parametrize("dtypes", [(F32, F32), (BF16, BF16), (BF16, F32), (I64, F32), (F64, F32)])
def test_promotion_of_tensors(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    x, y = sample(3, 5, dtype=dtypes[0]), sample(5, dtype=dtypes[1], low=1, high=4, seed=1)
    check_all([(op, (x, y)) for op in PAIRS])


@pytest.mark.parametrize("number", [2, 0.3, True])
@pytest.mark.parametrize("dtype", [F32, BF16, I64])
def test_promotion_of_numbers(number: Any, dtype: torch.dtype) -> None:
    x = sample(3, 4, dtype=dtype, low=1, high=4)
    # torch has no subtraction of bools.
    more = [] if number is True else ["sub.Tensor", "rsub.Scalar"]
    check_all([(op, (x, number)) for op in WITH_NUMBER + more])


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_zero_dim_tensors_do_not_widen(dtype: torch.dtype) -> None:
    check("add.Tensor", sample(3, dtype=dtype), torch.tensor(1.7, dtype=F64))
    check("mul.Tensor", torch.tensor(3, dtype=I64), sample(3, dtype=dtype))
    check("add.Tensor", sample(3, dtype=I64), torch.tensor(1.7))


def test_empty_and_scalars() -> None:
    check("add.Tensor", sample(0, 3), sample(3))
    check("mul.Tensor", sample(), sample())
    check("add.Tensor", sample(4, dtype=torch.bool), sample(4, dtype=torch.bool, seed=2))
    check("mul.Tensor", sample(4, dtype=torch.bool), sample(4, dtype=torch.bool, seed=2))


@pytest.mark.parametrize("alpha", [2, -1])
def test_alpha(alpha: int) -> None:
    check("add.Tensor", sample(3, 4), sample(4), alpha=alpha)
    check("sub.Tensor", sample(3, 4, dtype=I64), sample(4, dtype=I64), alpha=alpha)
    check("add.Tensor", sample(3, dtype=BF16), sample(3, dtype=BF16), alpha=0.3)


@pytest.mark.parametrize("op", ["fmod.Tensor", "remainder.Tensor", "floor_divide"])
def test_signs_of_remainders(op: str) -> None:
    check(op, SIGNED, DIVISOR)
    check(op, SIGNED[:4].long(), DIVISOR[:4].long())
    check(op, torch.tensor([1.0, -1.0, 0.0]), torch.tensor([0.0, 0.0, 0.0]))


@pytest.mark.parametrize("mode", ["floor", "trunc", None])
@pytest.mark.parametrize("dtype", [F32, I64, BF16])
def test_rounding_modes(mode: str | None, dtype: torch.dtype) -> None:
    check("div.Tensor_mode", SIGNED[:9].to(dtype), DIVISOR[:4].repeat(3)[:9].to(dtype),
          rounding_mode=mode)  # fmt: skip


def test_integer_division_by_zero_does_not_raise() -> None:
    from tests.unit.against_torch import metas_of, run

    x, zero = torch.tensor([1, -1, 0]), torch.tensor([0, 0, 0])
    assert run("floor_divide", metas_of([x]), (x, zero), {})[0].shape == (3,)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_powers(exponent: float, dtype: torch.dtype) -> None:
    check("pow.Tensor_Scalar", sample(8, dtype=dtype, low=0.2, high=3), exponent)


def test_powers_of_integers() -> None:
    check("pow.Tensor_Scalar", sample(8, dtype=I64), 3)
    check("pow.Tensor_Tensor", torch.tensor([2, 1, -1, -1, 0]), torch.tensor([3, -2, -2, -3, 0]))
    check("pow.Scalar", 2.0, sample(5))
    check("pow.Tensor_Scalar", torch.tensor([-8.0, 0.0, math.inf, math.nan]), 0.0)


def test_nan_wins_or_loses() -> None:
    x, y = torch.tensor([math.nan, 1.0, 2.0]), torch.tensor([1.0, math.nan, 3.0])
    for op in ("maximum", "minimum", "fmax", "fmin"):
        check(op, x, y)


@pytest.mark.parametrize("bounds", [(None, 1.0), (-1.0, None), (-1.0, 1.0), (0, 1)])
def test_clamp(bounds: tuple[Any, Any]) -> None:
    check("clamp", torch.tensor([-2.0, 0.5, 3.0, math.nan]), *bounds)
    check("clamp", sample(5, dtype=I64), *bounds)
    if None not in bounds:
        check("clamp.Tensor", sample(5), *(torch.tensor(float(b)) for b in bounds))
        check("clamp_min.Tensor", sample(3, 2), sample(2))
        check("clamp_max", sample(4, dtype=BF16), 0.7)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_fused_forms(dtype: torch.dtype) -> None:
    x, y, z = (sample(3, 4, dtype=dtype, low=0.5, high=2, seed=i) for i in range(3))
    check("addcmul", x, y, z, value=0.3)
    check("addcdiv", x, y, z, value=-0.3)
    for weight in (0.1, 0.9):
        check("lerp.Scalar", x, y, weight)
    check("lerp.Tensor", x, y, z)


def test_rarer() -> None:
    x, y = sample(3, 4, low=0.5, high=3), sample(4, low=0.5, high=3, seed=1)
    for op in ("hypot", "logaddexp", "logaddexp2", "xlogy.Tensor", "special_xlog1py", "heaviside",
               "copysign.Tensor", "nextafter"):  # fmt: skip
        check(op, x, y)
    check("igamma", x, y, tolerance=1e-4)
    check("igammac", x, y, tolerance=1e-4)
    check("xlogy.Tensor", torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, math.nan, 0.0]))
    for op in ("gcd", "lcm"):
        check(op, torch.tensor([12, -18, 0]), torch.tensor([8, 12, 5]))
    check("complex", x[0], y)
    check("polar", x[0], y)
    check("mul.Tensor", sample(3, dtype=torch.complex64), sample(3))
    check("add.Tensor", sample(3), 1j)
