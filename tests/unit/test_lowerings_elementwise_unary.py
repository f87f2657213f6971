"""Functions of one tensor against torch."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.against_torch import check, sample

EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 1e-30, 7.5])

EVERYWHERE = [
    "asinh", "atan", "cos", "erf", "erfc", "exp", "exp2", "expm1", "sigmoid", "sin", "sinh",
    "sinc", "tan", "tanh", "cosh", "special_i0e", "special_i1e",
]  # fmt: skip
POSITIVE = ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma",
            "special_entr", "special_erfcx", "i0", "special_i1"]  # fmt: skip
UNIT = ["acos", "asin", "atanh", "erfinv", "logit"]
ANY_NUMBER = ["neg", "abs", "sign", "sgn", "ceil", "floor", "round", "trunc", "signbit"]


@pytest.mark.parametrize("op", EVERYWHERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_defined_everywhere(op: str, dtype: torch.dtype) -> None:
    check(op, sample(3, 5, dtype=dtype))


@pytest.mark.parametrize("op", POSITIVE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_defined_for_positive_numbers(op: str, dtype: torch.dtype) -> None:
    if op == "special_erfcx" and dtype is torch.bfloat16:
        pytest.skip("torch has no erfcx of bfloat16 on the CPU")
    tolerance = 1e-4 if dtype is torch.float32 else None
    check(op, sample(3, 5, dtype=dtype, low=0.1, high=4), tolerance=tolerance)


@pytest.mark.parametrize("op", UNIT)
def test_defined_on_an_interval(op: str) -> None:
    check(op, sample(4, 4, low=0.05, high=0.95))
    check(op, sample(low=0.2, high=0.8))


@pytest.mark.parametrize("op", [*ANY_NUMBER, "exp", "sqrt", "rsqrt", "sigmoid", "tanh", "log",
                                "log1p", "reciprocal", "isnan", "isinf", "isposinf", "isneginf",
                                "nan_to_num", "logical_not", "frac", "angle", "cos",
                                "special_entr", "erf"])  # fmt: skip
def test_edges(op: str) -> None:
    values = EDGES if op not in ("frac", "cos") else EDGES[torch.isfinite(EDGES)]
    check(op, values)


@pytest.mark.parametrize("op", ANY_NUMBER)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float64])
def test_keep_the_dtype(op: str, dtype: torch.dtype) -> None:
    check(op, sample(2, 7, dtype=dtype))
    check(op, sample(0, 3, dtype=dtype))


@pytest.mark.parametrize("decimals", [0, 2, -1])
def test_round_to_even(decimals: int) -> None:
    values = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 15.0, 25.0, 2.345, 2.355])
    check("round", values)
    check("round.decimals", values, decimals=decimals)


def test_bits_and_bools() -> None:
    check("bitwise_not", sample(5, dtype=torch.int64))
    check("bitwise_not", sample(5, dtype=torch.bool))
    check("logical_not", sample(5, dtype=torch.int64))
    check("abs", torch.tensor([-128, 127], dtype=torch.int8))
    check("neg", torch.tensor([1, 255], dtype=torch.uint8))


@pytest.mark.parametrize("op", ["abs", "angle", "exp", "_conj_physical", "sgn", "neg", "sqrt",
                                "tanh", "view_as_real"])  # fmt: skip
def test_complex(op: str) -> None:
    check(op, sample(6, dtype=torch.complex64))


def test_with_numbers() -> None:
    check("nan_to_num", EDGES, 1.0, 2.0, -2.0)
    check("polygamma", 1, sample(6, low=0.5, high=4), tolerance=1e-4)
    check("logit", sample(9, low=-0.5, high=1.5), 0.1)
    check("deg2rad", sample(4, dtype=torch.int64))
    check("rad2deg", sample(4))
