"""Matrix products and convolutions against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.against_torch import check, sample

F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64
aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [F32, BF16, torch.float64, I64, torch.complex64])
def test_products(dtype: torch.dtype) -> None:
    check("mm", sample(3, 5, dtype=dtype), sample(5, 4, dtype=dtype))
    check("bmm", sample(2, 3, 5, dtype=dtype), sample(2, 5, 4, dtype=dtype))
    check("mv", sample(3, 5, dtype=dtype), sample(5, dtype=dtype))
    check("dot", sample(5, dtype=dtype), sample(5, dtype=dtype, seed=1))
    check("mm", sample(0, 5, dtype=dtype), sample(5, 4, dtype=dtype))
    check("mm", sample(3, 0, dtype=dtype), sample(0, 4, dtype=dtype))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("factors", [{}, {"beta": 0.5, "alpha": 2.0}, {"beta": 0}])
def test_products_with_a_sum(dtype: torch.dtype, factors: dict[str, Any]) -> None:
    bias = sample(4, dtype=dtype)
    if factors.get("beta") == 0:
        bias = torch.full((4,), float("nan"), dtype=dtype)
    check("addmm", bias, sample(3, 5, dtype=dtype), sample(5, 4, dtype=dtype), **factors)
    check("baddbmm", bias, sample(2, 3, 5, dtype=dtype), sample(2, 5, 4, dtype=dtype), **factors)


def test_rarer_products() -> None:
    check("addbmm", sample(3, 4), sample(2, 3, 5), sample(2, 5, 4), beta=0.5)
    check("addmv", sample(3), sample(3, 5), sample(5), alpha=0.5)
    check("addr", sample(3, 4), sample(3), sample(4), beta=2, alpha=0.5)
    check("vdot", sample(4, dtype=torch.complex64), sample(4, dtype=torch.complex64, seed=1))


def test_float32_products_keep_float32() -> None:
    check("mm", sample(8, 512), sample(512, 8), tolerance=1e-4)


#: input, weight, stride, padding, dilation, transposed, output padding, groups
CONVOLUTIONS: list[tuple[Any, ...]] = [
    ((2, 3, 9), (4, 3, 3), [2], [1], [1], False, [0], 1),
    ((2, 4, 6, 7), (4, 2, 3, 3), [1, 2], [1, 0], [1, 2], False, [0, 0], 2),
    ((1, 4, 5, 5), (4, 1, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
    ((2, 4, 5, 6), (4, 3, 3, 2), [2, 1], [1, 0], [1, 1], True, [1, 0], 1),
    ((2, 4, 5, 5), (4, 3, 3, 3), [2, 2], [1, 1], [2, 1], True, [0, 1], 2),
    ((1, 2, 4, 4, 4), (3, 2, 2, 2, 2), [1, 1, 1], [0, 1, 0], [1, 1, 1], False, [0, 0, 0], 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: "x".join(map(str, c[1])))
def test_convolutions(case: tuple[Any, ...]) -> None:
    x, weight = sample(*case[0], low=-1, high=1), sample(*case[1], low=-1, high=1)
    geometry = case[2:]
    channels = case[1][1] * geometry[-1] if geometry[3] else case[1][0]
    bias = sample(channels)
    check("convolution", x, weight, bias, *geometry, tolerance=1e-4)
    out = aten.convolution(x, weight, bias, *geometry)
    check("convolution_backward", torch.ones_like(out), x, weight, [channels], *geometry,
          [True, True, True], tolerance=1e-4)  # fmt: skip


def test_convolution_of_bfloat16_without_a_bias() -> None:
    x, weight = (sample(*s, dtype=BF16, low=-1, high=1) for s in ((2, 3, 6, 6), (4, 3, 3, 3)))
    geometry: tuple[Any, ...] = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    check("convolution", x, weight, None, *geometry, tolerance=4e-2)
    check("convolution_backward", sample(2, 4, 6, 6, dtype=BF16), x, weight, None, *geometry,
          [True, True, False], tolerance=0.1)  # fmt: skip
