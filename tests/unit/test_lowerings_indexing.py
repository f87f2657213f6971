"""Reading and writing at indices against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.against_torch import check, sample

F32, BF16, I64, BOOL = torch.float32, torch.bfloat16, torch.int64, torch.bool


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_embedding(dtype: torch.dtype, padding: int, by_frequency: bool) -> None:
    ids = torch.tensor([[1, 2, 2], [0, 4, 1]])
    check("embedding", sample(5, 4, dtype=dtype), ids, padding)
    grad = sample(2, 3, 4, dtype=dtype)
    check("embedding_dense_backward", grad, ids, 5, padding, by_frequency,
          tolerance=3e-2 if dtype is BF16 else None)  # fmt: skip


def test_embedding_of_nothing_and_int32() -> None:
    check("embedding", sample(5, 4), torch.zeros(0, dtype=I64))
    check("embedding", sample(5, 4), torch.tensor(3, dtype=torch.int32))
    check("embedding_dense_backward", sample(0, 4), torch.zeros(0, dtype=I64), 5, -1, False)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_select_and_gather(dim: int) -> None:
    x = sample(4, 5)
    check("index_select", x, dim, torch.tensor([3, 0, 3]))
    index = torch.randint(0, 4, (3, 2), generator=torch.Generator().manual_seed(0))
    check("gather", x, dim, index)
    check("gather", sample(4, 5, dtype=BF16), dim, index[:0])


def test_gather_from_scalars() -> None:
    check("gather", sample(), 0, torch.tensor(0))
    check("gather", sample(4), 0, torch.tensor(2))
    check("index_select", sample(), 0, torch.tensor([0]))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [F32, BF16, I64])
def test_scatter(dim: int, dtype: torch.dtype) -> None:
    x, source = sample(4, 5, dtype=dtype), sample(3, 4, dtype=dtype, seed=1)
    # Distinct targets: torch does not say which of several writes wins.
    index = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(i))
                         for i in range(3)])  # fmt: skip
    index = index if dim else index.T[:3, :3].argsort(0)
    check("scatter.src", x, dim, index, source)
    check("scatter.value", x, dim, index, 2)
    check("scatter_add", x, dim, index % 3, source)
    for reduce in ("add", "multiply"):
        check("scatter.reduce", x, dim, index, source, reduce=reduce)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [F32, I64])
def test_scatter_reduce(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    index = torch.tensor([[0, 1, 1], [1, 1, 3]])
    args = (sample(4, 3, dtype=dtype), 0, index, sample(2, 3, dtype=dtype, seed=1), reduce)
    check("scatter_reduce.two", *args, include_self=include_self)


INDICES: list[list[Any]] = [
    [torch.tensor([0, -1, 2])],
    [None, torch.tensor([1, -2])],
    [torch.tensor([[0], [1]]), torch.tensor([2, -1, 0])],
    [torch.tensor([0, 1]), None, torch.tensor([3, -4])],
    [None, torch.tensor(1)],
]


@pytest.mark.parametrize("indices", INDICES, ids=lambda i: str(len(i)))
def test_index_and_put(indices: list[Any]) -> None:
    x = sample(4, 3, 5)
    check("index.Tensor", x, indices)
    values = torch.ops.aten.index(x, indices) * 2
    for accumulate in (False, True):
        check("index_put", x, indices, values, accumulate)
        check("index_put", x, indices, torch.tensor(7.0), accumulate)


def test_put_adds_up_repeated_indices() -> None:
    check("index_put", sample(3, 2), [torch.tensor([1, 1, 1, 0])], sample(4, 2), True)
    check("index_put", sample(3, 2, dtype=BF16), [torch.tensor([1, 1])], sample(2, 2, dtype=BF16),
          True, tolerance=2e-2)  # fmt: skip


def test_put_through_a_mask() -> None:
    x, mask = sample(4, 3), sample(4, 3, dtype=BOOL)
    check("index_put", x, [mask], torch.tensor(5.0))
    check("index_put", x, [mask], sample(int(mask.sum())))
    rows = torch.tensor([True, False, True, False])
    check("index_put", x, [rows], sample(2, 3))
    check("index_put", x, [rows], sample(3), True)
    check("index_put", x, [None, torch.tensor([True, False, True])], torch.tensor(0.0))


def test_index_writes_along_a_dim() -> None:
    x, index = sample(4, 3), torch.tensor([2, 0])
    check("index_add", x, 0, torch.tensor([1, 1]), sample(2, 3), alpha=0.5)
    check("index_copy", x, 0, index, sample(2, 3))
    check("index_fill.int_Scalar", x, 1, index, 3.0)
    check("index_fill.int_Tensor", x, -1, index, torch.tensor(3.0))


def test_flat_positions() -> None:
    x, index = sample(3, 4), torch.tensor([[0, -1], [5, 5]])
    check("take", x, index)
    check("put", x, torch.tensor([0, 3, 11]), sample(3))
    check("put", x, index, sample(2, 2), True)
    mask = sample(3, 4, dtype=BOOL)
    check("masked_scatter", x, mask, sample(12, seed=1))
    check("masked_scatter", x, torch.zeros(3, 4, dtype=BOOL), sample(0))
    check("masked_scatter_backward", x, mask, [4, 3])
