"""Functions of one tensor against torch."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.against_torch import check, check_all, sample

EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 1e-30, 7.5])

EVERYWHERE = [
    "asinh", "atan", "cos", "erf", "erfc", "exp", "exp2", "expm1", "sigmoid", "sin", "sinh",
    "sinc", "tan", "tanh", "cosh", "special_i0e", "special_i1e",
]  # fmt: skip
POSITIVE = ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma",
            "special_entr", "special_erfcx", "i0", "special_i1"]  # fmt: skip
UNIT = ["acos", "asin", "atanh", "erfinv", "logit"]
AT_EDGES = [
    "neg", "abs", "sign", "sgn", "ceil", "floor", "round", "trunc", "signbit", "exp", "sqrt",
    "rsqrt", "sigmoid", "tanh", "log", "log1p", "reciprocal", "isnan", "isinf", "isposinf",
    "isneginf", "nan_to_num", "logical_not", "angle", "special_entr", "erf", "digamma",
]  # fmt: skip
ANY_NUMBER = ["neg", "abs", "sign", "sgn", "ceil", "floor", "round", "trunc", "signbit"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_defined_everywhere(dtype: torch.dtype) -> None:
    check_all([(op, (sample(3, 5, dtype=dtype),)) for op in EVERYWHERE])


def test_defined_for_positive_numbers() -> None:
    check_all([(op, (sample(3, 5, low=0.1, high=4),)) for op in POSITIVE], tolerance=1e-4)
    half = sample(3, 5, dtype=torch.bfloat16, low=0.1, high=4)
    check_all([(op, (half,)) for op in POSITIVE if op != "special_erfcx"])


def test_defined_on_an_interval() -> None:
    check_all([(op, (sample(4, 4, low=0.05, high=0.95),)) for op in UNIT])
    check_all([(op, (sample(low=0.2, high=0.8),)) for op in UNIT])


def test_edges() -> None:
    check_all([(op, (EDGES,)) for op in AT_EDGES])
    check_all([(op, (EDGES[torch.isfinite(EDGES)],)) for op in ("frac", "cos")])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float64])
def test_keep_the_dtype(dtype: torch.dtype) -> None:
    check_all([(op, (sample(2, 7, dtype=dtype),)) for op in ANY_NUMBER])
    check_all([(op, (sample(0, 3, dtype=dtype),)) for op in ANY_NUMBER])


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


def test_complex() -> None:
    ops = ("abs", "angle", "exp", "_conj_physical", "sgn", "neg", "sqrt", "tanh", "view_as_real")
    check_all([(op, (sample(6, dtype=torch.complex64),)) for op in ops])


def test_with_numbers() -> None:
    check("nan_to_num", EDGES, 1.0, 2.0, -2.0)
    check("polygamma", 1, sample(6, low=0.5, high=4), tolerance=1e-4)
    check("logit", sample(9, low=-0.5, high=1.5), 0.1)
    check("deg2rad", sample(4, dtype=torch.int64))
    check("rad2deg", sample(4))
