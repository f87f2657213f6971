"""Pooling, resampling and edge padding against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.against_torch import check, sample

aten = torch.ops.aten


@pytest.mark.parametrize("geometry", [([3, 3], [2, 2], [1, 1], [1, 1], False),
                                      ([2, 3], [1, 2], [0, 1], [2, 1], True),
                                      ([2, 2], [], [0, 0], [1, 1], False)])  # fmt: skip
def test_max_pool(geometry: tuple[Any, ...]) -> None:
    x = sample(2, 3, 7, 8)
    check("max_pool2d_with_indices", x, *geometry)
    out, places = aten.max_pool2d_with_indices(x, *geometry)
    check("max_pool2d_with_indices_backward", torch.ones_like(out), x, *geometry, places)


def test_max_pool_of_ties_and_volumes() -> None:
    check("max_pool2d_with_indices", torch.zeros(1, 4, 4), [2, 2])
    check("max_pool2d_with_indices", torch.full((1, 4, 4), float("-inf")), [3, 3], [2, 2], [1, 1])
    check("max_pool3d_with_indices", sample(1, 2, 4, 5, 4), [2, 2, 2])


@pytest.mark.parametrize("geometry", [([3, 3], [2, 2], [1, 1], False, True, None),
                                      ([3, 2], [2, 2], [1, 0], True, False, None),
                                      ([2, 2], [], [0, 0], False, True, 3)])  # fmt: skip
def test_average_pool(geometry: tuple[Any, ...]) -> None:
    x = sample(2, 3, 7, 8)
    check("avg_pool2d", x, *geometry)
    out = aten.avg_pool2d(x, *geometry)
    check("avg_pool2d_backward", sample(*out.shape), x, *geometry)


@pytest.mark.parametrize("size", [[3, 2], [1, 1], [9, 8]])
def test_adaptive(size: list[int]) -> None:
    x = sample(2, 3, 7, 8)
    check("_adaptive_avg_pool2d", x, size)
    check("_adaptive_avg_pool2d_backward", sample(2, 3, *size), x)
    check("adaptive_max_pool2d", x, size)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("op", ["upsample_bilinear2d", "upsample_bicubic2d"])
def test_weighted_resampling(align: bool, op: str) -> None:
    for size in ([8, 10], [3, 2]):
        check(op, sample(2, 3, 4, 5), size, align)
        check(f"{op}_backward", sample(2, 3, *size), size, [2, 3, 4, 5], align)


@pytest.mark.parametrize("op", ["upsample_nearest2d", "_upsample_nearest_exact2d"])
def test_nearest(op: str) -> None:
    for size in ([8, 10], [3, 2]):
        check(op, sample(2, 3, 4, 5), size)
        check(f"{op}_backward", sample(2, 3, *size), size, [2, 3, 4, 5])


def test_a_scale_counts_only_where_the_size_changes() -> None:
    x, grad = sample(2, 3, 4, 5), sample(2, 3, 4, 10)
    check("upsample_bilinear2d", x, [4, 10], False, 1.1, 2.1)
    check("_upsample_bicubic2d_aa", x, [4, 10], False, 1.1, 2.1)
    check("upsample_bilinear2d_backward", grad, [4, 10], [2, 3, 4, 5], False, 1.1, 2.1)


def test_nearest_looks_at_no_scale_where_the_size_doubles() -> None:
    check("upsample_nearest2d", sample(2, 3, 4, 5), [8, 5], 2.1, 1.1)
    check("upsample_nearest2d", sample(2, 3, 4, 5), [6, 7], 1.6, 1.55)
    check("upsample_nearest2d_backward", sample(2, 3, 8, 5), [8, 5], [2, 3, 4, 5], 2.1, 1.1)


@pytest.mark.parametrize("kind", ["reflection", "replication"])
def test_edge_padding(kind: str) -> None:
    x = sample(2, 3, 4, 5)
    for pads in ([1, 2, 0, 3], [2, -1, -1, 0]):
        check(f"{kind}_pad2d", x, pads)
        out = getattr(aten, f"{kind}_pad2d")(x, pads)
        check(f"{kind}_pad2d_backward", sample(*out.shape), x, pads)


@pytest.mark.parametrize("antialias", ["", "_aa"])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_of_bytes_are_resampled_to_the_same_bytes(mode: str, antialias: str) -> None:
    torch.manual_seed(0)
    image = torch.randint(0, 256, (2, 3, 7, 6), dtype=torch.uint8)
    name = f"{'_' if antialias else ''}upsample_{mode}2d{antialias}"
    for size in ([4, 9], [11, 3]):
        check(name, image, size, False, None, None)
