"""Views as values, joining, padding, scattering into parts and factories against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.against_torch import check, sample

X = sample(3, 4, 5)
F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64

VIEWS: list[tuple[Any, ...]] = [
    ("view", [4, -1]), ("_unsafe_view", [60]), ("permute", [2, 0, -2]), ("transpose.int", 0, -1),
    ("expand", [2, 3, 4, 5]), ("slice.Tensor", 1, 1, 100, 2), ("slice.Tensor", -1, -3, -1),
    ("slice.Tensor", 0, 5), ("select.int", 1, -1), ("squeeze",), ("unsqueeze", -1),
    ("split.Tensor", 2, 1), ("split_with_sizes", [1, 3], 1), ("unbind.int", -1), ("alias",),
    ("detach",), ("as_strided", [2, 3], [7, 2], 4), ("diagonal", 1, 0, 2), ("unfold", 2, 3, 1),
    ("clone",), ("repeat", [2, 1, 1, 3]), ("flip", [0, -1]), ("roll", [1, -2], [0, 2]),
    ("roll", [7]), ("rot90", 1, [0, 1]), ("constant_pad_nd", [1, 2, 0, -1], 3.5), ("tril", 1),
    ("triu", -1), ("slice_scatter", X[:, 1:3] * 2, 1, 1, 3), ("select_scatter", X[:, 0] * 2, 1, -1),
    ("slice_scatter", X[:, ::2] * 2, 1, 0, 4, 2), ("diagonal_scatter", torch.zeros(3, 4), 0, 0, 1),
]  # fmt: skip


@pytest.mark.parametrize("case", [c for c in VIEWS if "diagonal_scatter" not in c[0]],
                         ids=lambda c: c[0])  # fmt: skip
@pytest.mark.parametrize("dtype", [F32, I64])
def test_views(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    args = [a.to(dtype) if isinstance(a, torch.Tensor) else a for a in case[1:]]
    check(case[0], X.to(dtype), *args)


def test_diagonals() -> None:
    for offset, length in ((0, 3), (1, 3), (-1, 2)):
        check("diagonal_scatter", sample(3, 4), sample(length), offset)
        check("diagonal_backward", sample(length), [3, 4], offset, 0, 1)
    check("diag_embed", sample(2, 3), 1)


def test_gradients_of_views() -> None:
    check("slice_backward", sample(3, 2), [3, 5], 1, 1, 5, 2)
    check("select_backward", sample(3), [3, 5], 1, -2)
    check("unfold_backward", sample(3, 3, 4), [3, 8], 1, 4, 2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.float64, BF16])
def test_reinterpreting(dtype: torch.dtype) -> None:
    check("view.dtype", sample(2, 4), dtype)


def test_joining() -> None:
    check("cat", [sample(2, 3), sample(1, 3)], 0)
    check("cat", [sample(2, 3, dtype=BF16), sample(2, 2)], -1)
    check("cat", [sample(0), sample(2, 2)], 1)
    check("cat", [sample(2, dtype=I64), sample(2)])
    check("stack", [sample(2, 3), sample(2, 3, seed=1)], -1)


def test_copies_cast() -> None:
    check("copy", sample(3, 4), sample(4, dtype=torch.float64))
    check("_to_copy", sample(3, 4), dtype=BF16)
    check("_to_copy", torch.tensor([1.7, -1.7, 0.0]), dtype=I64)
    check("_to_copy", torch.tensor([0.5, 0.0, float("nan")]), dtype=torch.bool)


FACTORIES: list[tuple[Any, ...]] = [
    ("full", [2, 3], 1.5), ("full", [2], 7), ("full", [], True), ("zeros", [2, 0]), ("ones", [3]),
    ("arange", 5), ("arange", 2.5), ("arange.start", 2, 7), ("arange.start_step", 1.0, 2.0, 0.25),
    ("arange.start_step", 10, 0, -3), ("linspace", 0.0, 1.0, 7), ("linspace", -2, 10, 5),
    ("linspace", 3.0, 9.0, 1), ("logspace", 0.0, 2.0, 4), ("eye", 3), ("eye.m", 2, 4),
    ("scalar_tensor", 2.5), ("tril_indices", 3, 4), ("triu_indices", 3, 3, 1),
]  # fmt: skip


@pytest.mark.parametrize("case", FACTORIES, ids=lambda c: c[0])
def test_factories(case: tuple[Any, ...]) -> None:
    check(case[0], *case[1:])
    if "indices" not in case[0] and case[1:] != ([], True):
        check(case[0], *case[1:], dtype=BF16)


def test_factories_like_a_tensor() -> None:
    for op in ("zeros_like", "ones_like", "zero"):
        check(op, sample(2, 3, dtype=BF16))
    check("full_like", sample(2, 3, dtype=BF16), 0.3)
    check("new_full", sample(2), [3], 0.3, dtype=I64)
    check("fill.Scalar", sample(2, dtype=I64), 3.9)
    check("fill.Tensor", sample(2), torch.tensor(3))
    check("block_diag", [sample(2, 3), sample(1, 2), sample(2)])
