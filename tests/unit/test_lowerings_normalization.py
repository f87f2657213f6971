"""Softmaxes, norms and their gradients against torch."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.against_torch import check, metas_of, run, same, sample

F32, BF16, F64 = torch.float32, torch.bfloat16, torch.float64
aten = torch.ops.aten


@pytest.mark.parametrize("op", ["_softmax", "_log_softmax"])
@pytest.mark.parametrize("dtype", [F32, BF16, F64])
def test_softmax(op: str, dtype: torch.dtype) -> None:
    x = sample(3, 7, dtype=dtype)
    for dim in (-1, 0):
        check(op, x, dim, False)
        out = getattr(aten, op)(x, dim, False)
        check(f"{op}_backward_data", sample(3, 7, dtype=dtype, seed=1), out, dim, dtype)
    check(op, sample(dtype=dtype), 0, False)
    check(op, sample(0, 3, dtype=dtype), 1, False)


@pytest.mark.parametrize("op", ["_softmax", "_log_softmax", "_safe_softmax"])
def test_softmax_of_masked_rows(op: str) -> None:
    x = torch.tensor([[-math.inf, -math.inf], [0.0, -math.inf], [1e30, 1e30], [math.nan, 0.0]])
    check(op, x, 1, *([] if op == "_safe_softmax" else [False]))


@pytest.mark.parametrize("dtype", [F32, BF16, F64])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(dtype: torch.dtype, affine: bool) -> None:
    x, grad = sample(2, 3, 8, dtype=dtype), sample(2, 3, 8, dtype=dtype, seed=1)
    weight = sample(8, dtype=dtype) if affine else None
    bias = sample(8, dtype=dtype, seed=2) if affine else None
    check("native_layer_norm", x, [8], weight, bias, 1e-5, tolerance=2e-2 if dtype is BF16 else
          None)  # fmt: skip
    _, mean, rstd = aten.native_layer_norm(x, [8], weight, bias, 1e-5)
    check("native_layer_norm_backward", grad, x, [8], mean, rstd, weight, bias,
          [True, affine, affine], tolerance=5e-2 if dtype is BF16 else 1e-4)  # fmt: skip


def test_layer_norm_over_two_dims_and_nothing() -> None:
    check("native_layer_norm", sample(2, 3, 4), [3, 4], sample(3, 4), None, 1e-5)
    check("native_layer_norm", sample(0, 4), [4], None, None, 1e-5)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_rms_norm(dtype: torch.dtype) -> None:
    x = sample(2, 3, 8, dtype=dtype).requires_grad_()
    weight = sample(8, dtype=dtype).requires_grad_()
    out = torch.nn.functional.rms_norm(x, [8], weight, 1e-6)
    grad = sample(2, 3, 8, dtype=dtype, seed=1)
    torch.autograd.backward([out], [grad])
    rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    tolerance = 4e-2 if dtype is BF16 else 1e-4
    got = run("_fused_rms_norm", metas_of([out, rstd]), (x, [8], weight, 1e-6), {})
    same(got[0], out, tolerance)
    same(got[1], rstd.detach(), 1e-5)
    assert x.grad is not None
    assert weight.grad is not None
    wanted = [x.grad, weight.grad]
    args = (grad, x, [8], rstd, weight, [True, True])
    for mine, theirs in zip(run("_fused_rms_norm_backward", metas_of(wanted), args, {}), wanted,
                            strict=True):  # fmt: skip
        same(mine, theirs, tolerance)


@pytest.mark.parametrize("group", [1, 2])
def test_group_norm(group: int) -> None:
    x, weight, bias = sample(2, 4, 3, 3), sample(4), sample(4, seed=2)
    args = (2, 4, 9, group)
    check("native_group_norm", x, weight, bias, *args, 1e-5)
    _, mean, rstd = aten.native_group_norm(x, weight, bias, *args, 1e-5)
    check("native_group_norm_backward", sample(2, 4, 3, 3, seed=1), x, mean, rstd, weight, *args,
          [True, True, True], tolerance=1e-4)  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training: bool) -> None:
    x, weight, bias = sample(4, 3, 5), sample(3), sample(3, seed=2)
    mean, var = sample(3, seed=3), sample(3, low=0.5, high=2)
    args = (x, weight, bias, mean, var, training, 0.1, 1e-5)
    check("_native_batch_norm_legit_functional", *args)
    _, saved, inverse = aten.native_batch_norm(*args[:3], mean.clone(), var.clone(), *args[5:])
    check("native_batch_norm_backward", sample(4, 3, 5, seed=1), x, weight, mean, var, saved,
          inverse, training, 1e-5, [True, True, True], tolerance=1e-4)  # fmt: skip


def test_batch_norm_variants() -> None:
    x, mean, var = sample(4, 3, 5), sample(3), sample(3, low=0.5, high=2)
    check("_native_batch_norm_legit.no_stats", x, None, None, True, 0.1, 1e-5)
    check("_native_batch_norm_legit_no_training", x, sample(3), None, mean, var, 0.1, 1e-5)


def test_batch_norm_changes_running_statistics() -> None:
    x, mean, var = sample(4, 3, 5), torch.zeros(3), torch.ones(3)
    after = mean.clone(), var.clone()
    outs = list(aten.native_batch_norm(x, None, None, *after, True, 0.1, 1e-5))
    got = run("native_batch_norm", metas_of([*outs, *after]),
              (x, None, None, mean, var, True, 0.1, 1e-5), {})  # fmt: skip
    for mine, theirs in zip(got, [*outs, *after], strict=True):
        same(mine, theirs, 1e-5)


def test_batch_norm_gives_all_gradients_where_the_meta_kernel_does() -> None:
    """As for an input that needs no gradient: torch's meta kernel still makes three outputs."""
    x, weight, grad = sample(4, 3, 5), sample(3), sample(4, 3, 5, seed=1)
    _, mean, inverse = aten.native_batch_norm(x, weight, None, None, None, True, 0.1, 1e-5)
    args = (grad, x, weight, None, None, mean, inverse, True, 1e-5)
    wanted = list(aten.native_batch_norm_backward(*args, [True] * 3))
    got = run("native_batch_norm_backward", metas_of(wanted), (*args, [False, True, True]), {})
    for mine, theirs in zip(got, wanted, strict=True):
        same(mine, theirs, 1e-4)
