"""Attention and its gradient against torch's composition of plain ops."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.unit.against_torch import TABLE, metas_of, run, same, sample, to_array
from tpu_perf.runtime.lowerings.registry import Call

FORWARD = "_scaled_dot_product_fused_attention_overrideable"
BACKWARD = f"{FORWARD}_backward"


def _tensors(key_heads: int, dtype: torch.dtype, keys: int = 6) -> list[torch.Tensor]:
    shapes = [(2, 4, 5, 8), (2, key_heads, keys, 8), (2, key_heads, keys, 8)]
    return [
        sample(*s, dtype=dtype, low=-1, high=1, seed=i).requires_grad_()
        for i, s in enumerate(shapes)
    ]


def _compare(tensors: list[torch.Tensor], bias: torch.Tensor | None, tolerance: float,
             **options: Any) -> None:  # fmt: skip
    query, key, value = tensors
    grouped = key.shape[1] != query.shape[1]
    out = scaled_dot_product_attention(query, key, value, bias, enable_gqa=grouped, **options)
    grad = sample(*out.shape, dtype=out.dtype, seed=9)
    torch.autograd.backward([out], [grad])
    log_sum = torch.zeros(2, 4, 5)
    seed = torch.zeros((), dtype=torch.int64)
    causal, scale = options.get("is_causal", False), options.get("scale")
    forward = run(FORWARD, metas_of([out, log_sum, seed, seed]),
                  (query, key, value, bias, 0.0, causal, False), {"scale": scale})  # fmt: skip
    same(forward[0], out, tolerance)
    sums = torch.from_numpy(np.asarray(forward[1]).astype(np.float32))
    inputs = [*tensors] if bias is None or bias.grad is None else [*tensors, bias]
    wanted = [t.grad for t in inputs if t.grad is not None]
    args = (grad, query, key, value, bias, [True] * 4, out, sums, None, None, 5, 6, 0.0, causal,
            seed, seed)  # fmt: skip
    backward = run(BACKWARD, metas_of(wanted), args, {"scale": scale})
    for got, want in zip(backward, wanted, strict=True):
        same(got, want, tolerance)


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_queries_and_causal_masks(key_heads: int, causal: bool) -> None:
    _compare(_tensors(key_heads, torch.float32), None, 1e-5, is_causal=causal)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    tolerance = 4e-2 if dtype is torch.bfloat16 else 1e-9
    _compare(_tensors(2, dtype), None, tolerance, is_causal=True, scale=0.3)


@pytest.mark.parametrize("shape", [(5, 6), (2, 1, 5, 6), (1, 4, 1, 6), (2, 4, 5, 6)])
def test_bias_and_its_gradient(shape: tuple[int, ...]) -> None:
    _compare(_tensors(4, torch.float32), sample(*shape).requires_grad_(), 1e-5)


def test_rows_that_see_nothing_are_zero() -> None:
    bias = torch.zeros(5, 6)
    bias[1] = -math.inf
    bias[2, 3:] = -math.inf
    _compare(_tensors(2, torch.float32), bias, 1e-5)


def test_dropout_is_redrawn_in_the_gradient() -> None:
    """Against JAX's own derivative of the forward pass with the same draw."""
    arrays = [to_array(t) for t in _tensors(2, torch.float32)]
    metas = metas_of([torch.zeros(2, 4, 5, 8), torch.zeros(2, 4, 5)])
    draw = jax.numpy.asarray(3, jax.numpy.int64)

    def forward(*inputs: Any) -> Any:
        return TABLE[f"{FORWARD}.default"].lower(Call("", metas, draw, draw), *inputs, None, 0.4)

    out, log_sum, *_, seed, offset, _ = forward(*arrays)
    assert int(seed) == int(offset) == 3
    grad = to_array(sample(2, 4, 5, 8, seed=9))
    _, pull = jax.vjp(lambda *inputs: forward(*inputs)[0], *arrays)
    backward = TABLE[f"{BACKWARD}.default"].lower(
        Call("", metas), grad, *arrays, None, [True] * 4, out, log_sum, None, None, 5, 6, 0.4,
        False, seed, offset,
    )  # fmt: skip
    for got, want in zip(backward[:3], pull(grad), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_gradients_of_large_scores_are_as_near_as_float32_allows() -> None:
    """Rows of weights that miss 1 by a rounding of scores near 50 would be several times further
    off: all of a gradient but that rounding cancels."""
    query, key, value = (t.detach() + torch.arange(8.0) for t in _tensors(4, torch.float32))
    grad = torch.ones(2, 4, 5, 8)
    exact = [t.double().requires_grad_() for t in (query, key, value)]
    scaled_dot_product_attention(exact[0], exact[1], exact[2]).backward(grad.double())
    seed = torch.zeros((), dtype=torch.int64)
    out, log_sum, *_ = run(FORWARD, metas_of([grad, torch.zeros(2, 4, 5), seed, seed]),
                           (query, key, value, None, 0.0, False, False), {})  # fmt: skip
    made = run(BACKWARD, metas_of([query, key, value]),
               (grad, query, key, value, None, [True] * 4, torch.from_numpy(np.array(out)),
                torch.from_numpy(np.array(log_sum)), None, None, 5, 6, 0.0, False, seed, seed),
               {})  # fmt: skip
    for got, want in zip(made, exact, strict=False):
        assert want.grad is not None
        np.testing.assert_allclose(np.asarray(got), want.grad.numpy(), rtol=1e-5, atol=3e-5)
