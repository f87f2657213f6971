"""Order, rank, running values and search against torch."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.against_torch import check, sample

F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64
TIED = torch.tensor([[3, 1, 3, 2, 1], [0, 0, 5, 5, 0]])
WITH_NAN = torch.tensor([[2.0, math.nan, -math.inf, 1.0], [math.inf, 0.0, -0.0, math.nan]])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, -1])
def test_sort_is_stable(descending: bool, dim: int) -> None:
    for x in (TIED, TIED.float(), WITH_NAN, TIED.bool(), TIED.to(BF16)):
        check("sort.stable", x, stable=True, dim=dim, descending=descending)
    check("sort", sample(), 0, descending)
    check("sort", sample(0, 3), 0, descending)


@pytest.mark.parametrize("largest", [False, True])
def test_topk(largest: bool) -> None:
    for dtype in (F32, BF16, torch.float64):
        check("topk", sample(3, 9, dtype=dtype), 4, -1, largest)
    check("topk", torch.tensor([5, -7, 3, 2]), 2, 0, largest)
    check("topk", WITH_NAN[:1], 2, 1, largest)


@pytest.mark.parametrize("op", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
def test_running(op: str) -> None:
    for dim in (0, 1):
        check(op, sample(3, 5), dim)
    check(op, sample(3, 5, dtype=BF16), 1, tolerance=2e-2)
    check(op, sample(), 0)
    if op in ("cumsum", "cumprod"):
        check(op, sample(3, 5, dtype=I64), 1)
        check(op, sample(4, dtype=torch.int32), 0, dtype=F32)
        check(op, sample(4, dtype=torch.bool), 0)
    if op in ("cummax", "cummin"):
        check(op, TIED, 1)
        check(op, WITH_NAN, 1)


def test_ranks() -> None:
    x = sample(4, 7)
    check("kthvalue", x, 3, 1)
    check("median.dim", x, 1, True)
    check("median.dim", WITH_NAN, 1)
    check("median", x)
    check("median", WITH_NAN)
    check("nanmedian", WITH_NAN)
    check("median", TIED)


@pytest.mark.parametrize("right", [False, True])
def test_search(right: bool) -> None:
    edges = torch.tensor([1.0, 2.0, 2.0, 5.0])
    check("bucketize.Tensor", torch.tensor([[0.0, 2.0], [5.0, 9.0]]), edges, right=right)
    check("searchsorted.Tensor", edges, torch.tensor([2.0, 3.0]), right=right, out_int32=True)
    check("searchsorted.Tensor", edges.expand(2, 4).contiguous(),
          torch.tensor([[2.0], [5.0]]), right=right)  # fmt: skip
    check("searchsorted.Scalar", edges, 2.0, right=right)
    check("bucketize.Scalar", 2, edges, right=right)


def test_histogram() -> None:
    check("histc", sample(50), 7, -2, 2)
    check("histc", sample(50), 7)
