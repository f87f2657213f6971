"""torch.nn.attention.flex_attention on device "tpu" against attention written out on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import tpu_perf.runtime.device  # noqa: F401 - loads the device
from tpu_perf.runtime.modes import EagerMode, mode_set_to

BATCH, HEADS, KV_HEADS, LENGTH, WIDTH = 2, 4, 2, 24, 8
#: Which document a position belongs to.
DOCUMENTS = torch.tensor([[0] * 10 + [1] * 14, [0] * 4 + [1] * 4 + [2] * 16])


def _strict(function: Any) -> Any:
    return mode_set_to(EagerMode.DEFER_NEVER)(function)


def _deferring(function: Any) -> Any:
    return mode_set_to(EagerMode.DEFER_AND_FUSE)(function)


def _for_inductor(function: Any) -> Any:
    """As libraries do it, which name no backend."""
    return torch.compile(function)


def _compiled(function: Any) -> Any:
    return torch.compile(function, backend="tpu")


WAYS = pytest.mark.parametrize("way", [_strict, _deferring, _compiled, _for_inductor])


def _inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (HEADS, KV_HEADS, KV_HEADS)
    tensors = [torch.randn(BATCH, h, LENGTH, WIDTH, generator=generator) for h in sizes]
    return [*tensors, torch.randn(HEADS, generator=generator)]


def _leaves(tensors: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    return [t.detach().to(device).requires_grad_() for t in tensors]


def _written_out(tensors: list[torch.Tensor], visible: torch.Tensor) -> list[torch.Tensor]:
    """Output, logsumexp and the gradients of their weighted sums, on the CPU."""
    leaves = _leaves(tensors, "cpu")
    query, key, value, slope = leaves
    key, value = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (key, value))
    places = torch.arange(LENGTH)
    scores = query @ key.mT / math.sqrt(WIDTH)
    scores = scores + slope[:, None, None] * (places[:, None] - places)
    scores = scores.masked_fill(~visible, -torch.inf)
    return _with_gradients(scores.softmax(-1) @ value, scores.logsumexp(-1), leaves)


def _with_gradients(
    output: torch.Tensor, logsumexp: torch.Tensor, leaves: list[torch.Tensor]
) -> list[torch.Tensor]:
    weights = torch.linspace(0, 1, WIDTH, device=output.device)
    ((output * weights).sum() + 0.5 * logsumexp.sum()).backward()
    gradients = [leaf.grad for leaf in leaves]
    assert all(g is not None for g in gradients)
    return [t.detach().cpu() for t in (output, logsumexp, *gradients) if t is not None]


def _on_device(
    tensors: list[torch.Tensor], mask: Callable[..., Any], way: Callable[[Any], Any]
) -> list[torch.Tensor]:
    leaves = _leaves(tensors, "tpu")
    query, key, value, slope = leaves

    def score(score: Any, batch: Any, head: Any, at: Any, seen: Any) -> Any:
        return score + slope[head] * (at - seen)

    blocks = create_block_mask(mask, BATCH, None, LENGTH, LENGTH, device="tpu", BLOCK_SIZE=8)
    torch.compiler.reset()
    output, others = way(flex_attention)(
        query, key, value, score_mod=score, block_mask=blocks, enable_gqa=True,
        return_aux=AuxRequest(lse=True),
    )  # fmt: skip
    return _with_gradients(output, others.lse, leaves)


def _assert_close(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


@WAYS
def test_causal_attention_with_a_learned_bias(way: Callable[[Any], Any]) -> None:
    def causal(batch: Any, head: Any, at: Any, seen: Any) -> Any:
        return at >= seen

    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    want = _written_out(_inputs(), visible)
    _assert_close(_on_device(_inputs(), causal, way), want)


@WAYS
def test_attention_within_documents(way: Callable[[Any], Any]) -> None:
    documents = DOCUMENTS.to("tpu")

    def within(batch: Any, head: Any, at: Any, seen: Any) -> Any:
        return documents[batch, at] == documents[batch, seen]

    visible = (DOCUMENTS[:, :, None] == DOCUMENTS[:, None, :])[:, None]
    want = _written_out(_inputs(), visible)
    _assert_close(_on_device(_inputs(), within, way), want)


@pytest.mark.parametrize("way", [_strict, _compiled])
def test_a_row_that_sees_nothing_is_zero(way: Callable[[Any], Any]) -> None:
    query, key, value, _ = (t.to("tpu") for t in _inputs())

    def all_but_first(batch: Any, head: Any, at: Any, seen: Any) -> Any:
        return (at > 0) & (seen <= at)

    blocks = create_block_mask(all_but_first, None, None, LENGTH, LENGTH, device="tpu")
    torch.compiler.reset()
    with torch.no_grad():
        made = way(flex_attention)(query, key, value, block_mask=blocks, enable_gqa=True).cpu()
    assert not made[:, :, 0].any()
    assert made[:, :, 1:].isfinite().all()
    assert made[:, :, 1:].any()


@pytest.mark.parametrize("way", [_strict, _compiled])
def test_autocast_computes_in_its_dtype(way: Callable[[Any], Any]) -> None:
    query, key, value, _ = (t.to("tpu") for t in _inputs())
    torch.compiler.reset()

    def attend() -> torch.Tensor:
        made: torch.Tensor = way(flex_attention)(query, key, value, enable_gqa=True)
        return made.cpu()

    exact = attend()
    with torch.autocast("tpu", dtype=torch.bfloat16):
        rounded = attend()
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=2e-2, atol=2e-2)
