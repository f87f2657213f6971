"""Reductions against torch: dtypes they accumulate in, dims, ties and NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.unit.against_torch import check, sample

F32, BF16, I64, BOOL = torch.float32, torch.bfloat16, torch.int64, torch.bool


@pytest.mark.parametrize("dtype", [F32, BF16, I64, BOOL, torch.int8])
def test_sum(dtype: torch.dtype) -> None:
    x = sample(3, 40, dtype=dtype)
    check("sum", x)
    check("sum.dim_IntList", x, [1])
    check("sum.dim_IntList", x, [-1, 0], True)
    check("sum.dim_IntList", x, [])
    check("sum.dim_IntList", x, None, dtype=F32)
    check("sum", sample(0, dtype=dtype))
    check("sum", sample(dtype=dtype))


def test_sum_of_halves_accumulates_in_float32() -> None:
    check("sum", torch.full((5000,), 0.01, dtype=BF16), tolerance=4e-3)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_mean_and_prod(dtype: torch.dtype) -> None:
    x = sample(3, 5, dtype=dtype)
    check("mean", x)
    check("mean.dim", x, [0], True)
    check("mean.dim", sample(0, 3, dtype=dtype), [0])
    check("prod", x)
    check("prod.dim_int", x, -1)
    check("mean.dim", sample(3, 4, dtype=I64), [1], dtype=F32)


@pytest.mark.parametrize("op", ["amax", "amin"])
def test_extremes(op: str) -> None:
    check(op, sample(3, 5), [1], True)
    check(op, sample(3, 5, dtype=I64))
    check(op, torch.tensor([[1.0, math.nan], [2.0, 3.0]]), [1])


@pytest.mark.parametrize("op", ["max.dim", "min.dim"])
def test_extremes_with_places(op: str) -> None:
    check(op, torch.tensor([[2.0, 2.0, 1.0], [1.0, math.nan, math.nan], [1.0, 1.0, 3.0]]), 1)
    check(op, sample(3, 5, dtype=I64), 0, True)
    check(op, sample(), 0)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_places(op: str) -> None:
    tied = torch.tensor([[1, 3, 3], [0, 0, 2]])
    check(op, tied)
    check(op, tied, 1)
    check(op, tied.float(), 0, True)
    check(op, tied, None, True)
    check(op, torch.tensor([1.0, math.nan, 3.0]))
    check(op, torch.tensor(3.0))


@pytest.mark.parametrize("op", ["any", "all"])
def test_truth(op: str) -> None:
    for x in (sample(3, 4, dtype=BOOL), sample(3, 4, dtype=I64), torch.tensor([0.0, math.nan])):
        check(op, x)
        check(f"{op}.dim", x, -1, True)
    check(op, sample(0, dtype=BOOL))


@pytest.mark.parametrize("op", ["var.correction", "std.correction", "var_mean.correction",
                                "std_mean.correction"])  # fmt: skip
@pytest.mark.parametrize("correction", [None, 0, 1, 2.5])
def test_moments(op: str, correction: Any) -> None:
    check(op, sample(4, 6), [1], correction=correction, keepdim=True)
    check(op, sample(4, 6, dtype=BF16), correction=correction)


def test_too_few_samples() -> None:
    check("var.correction", sample(1), correction=1)
    check("var.correction", sample(2, 3), [0], correction=3)


@pytest.mark.parametrize("p", [0, 1, 2, 3.5, math.inf, -math.inf])
def test_norms(p: float) -> None:
    check("linalg_vector_norm", sample(3, 5), p)
    check("linalg_vector_norm", sample(3, 5, dtype=BF16), p, [1], True)
    check("linalg_vector_norm", sample(3, 5, dtype=BF16), p, None, dtype=F32)
    check("norm.ScalarOpt_dim", sample(3, 5), p, [0])
    check("norm.Scalar", sample(6), p)


def test_norms_of_lists() -> None:
    check("_foreach_norm.Scalar", [sample(3), sample(2, 2, dtype=BF16)], 2)
    check("_foreach_max", [sample(3), sample(2, 2)])


def test_logsumexp() -> None:
    check("logsumexp", sample(3, 5), [1])
    check("logsumexp", torch.tensor([[-math.inf, -math.inf], [1000.0, 1000.0], [math.inf, 0.0]]),
          [1], True)  # fmt: skip
    check("logsumexp", sample(3, 5, dtype=BF16), [0, 1])


def test_rarer() -> None:
    check("aminmax", sample(3, 4), dim=1)
    check("count_nonzero.dim_IntList", sample(3, 4, dtype=I64), [0])
    check("nansum", torch.tensor([1.0, math.nan, 2.0]))
    check("renorm", sample(4, 5), 2, 0, 1.0)
    check("dist", sample(4), sample(4, seed=2), 3)
    check("trace", sample(4, 4))
    check("sum", sample(4, dtype=torch.complex64))
