"""Attention as one op: two products over the pairs of queries and keys that see each other.

Forward: scores (q . k) and their weighted sum of v: 2 d_qk + 2 d_v FLOPs a pair and query head.
Backward: gradients of v and of the probabilities (2 d_v each), of q and of k (2 d_qk each), so
twice the forward. Fused kernels compute the scores again on the way back; that is not what the
mathematics needs, so it counts as executed only. Queries of grouped heads count each, keys and
values shared by them once (GQA changes no FLOPs).

Pairs under the convention `causal`: those in sight, those on the diagonal counted half, so that n
queries and n keys make n^2 / 2, as published figures count. Under `full`: all of them. A sliding
window that the call names bounds a query's keys under both.
"""

from __future__ import annotations

import math

import numpy as np

from tpu_perf.analysis.op_flops.call import Call, TensorArgument
from tpu_perf.analysis.op_flops.formulas import Attention, Counted, Unknown, formula

MASK_NOTE = (
    "an attention mask given as a tensor is counted in full under both conventions: its values "
    "(causal, window, padding) are not recorded"
)
VARLEN_NOTE = (
    "attention over packed sequences of varying length is counted as if all were equally long: "
    "their lengths are not recorded"
)


def visible_pairs(
    queries: int,
    keys: int,
    *,
    causal: bool,
    bottom_right: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    attention: Attention = "causal",
) -> float:
    """Pairs of a query and a key in its sight, by convention `attention`.

    `window` bounds how many keys to the left and right of its own a query sees (None: all).
    `bottom_right` aligns the last query with the last key, as flash kernels do; torch's SDPA
    aligns the first with the first.
    """
    left, right = window
    if attention == "full":
        if left is None or (right is None and not causal):
            return float(queries) * keys
        return float(queries) * min(left + (right or 0) + 1, keys)
    own = np.arange(queries) + (keys - queries if bottom_right else 0)
    first = np.zeros_like(own) if left is None else own - left
    last = np.full_like(own, keys - 1) if right is None else own + right
    if causal:
        last = np.minimum(last, own)
    seen = np.minimum(last, keys - 1) - np.maximum(first, 0) + 1
    diagonal = int(((own >= 0) & (own < keys)).sum()) if causal else 0
    return float(np.maximum(seen, 0).sum()) - diagonal / 2


def _counted(
    call: Call, pairs: float, batch_heads: int, d_qk: int, d_v: int, *, backward: bool,
    note: str | None,
) -> Counted:  # fmt: skip
    forward = 2.0 * pairs * batch_heads * (d_qk + d_v)
    if not backward:
        return Counted(model=forward, note=note)
    return Counted(
        model=2 * forward, executed=2 * forward + 2.0 * pairs * batch_heads * d_qk, note=note
    )


def _scaled_dot_product(call: Call, attention: Attention, *, backward: bool) -> Counted:
    """query (..., heads, length, d), key and value with as many heads or a divisor of them."""
    query, key, value = call.shape("query"), call.shape("key"), call.shape("value")
    pairs = visible_pairs(
        query[-2], key[-2], causal=bool(call.get("is_causal", False)), attention=attention
    )
    mask = call.get("attn_mask", call.get("attn_bias"))
    note = MASK_NOTE if isinstance(mask, TensorArgument) and mask.elements else None
    heads = math.prod(query[:-2])
    return _counted(call, pairs, heads, query[-1], value[-1], backward=backward, note=note)


@formula(
    *("scaled_dot_product_attention", "_scaled_dot_product_attention_math"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_attention_math_for_mps",
)
def scaled_dot_product(call: Call, attention: Attention) -> Counted:
    return _scaled_dot_product(call, attention, backward=False)


@formula(
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_fused_attention_overrideable_backward",
)
def scaled_dot_product_backward(call: Call, attention: Attention) -> Counted:
    return _scaled_dot_product(call, attention, backward=True)


def _bound(value: object) -> int | None:
    """A side of a window; kernels write "no bound" as null or a negative number."""
    return int(value) if isinstance(value, (int, float)) and value >= 0 else None


def _kernel(
    call: Call, attention: Attention, *, backward: bool, causal: bool, bottom_right: bool,
    window: tuple[int | None, int | None], packed: object, longest: tuple[str, str],
) -> Counted:  # fmt: skip
    """query (batch, length, heads, d), or packed (tokens, heads, d) with the longest length."""
    query, key, value = call.shape("query"), call.shape("key"), call.shape("value")
    tokens, lengths, note = math.prod(query[:-2]), (query[-3], key[-3]), None
    if isinstance(packed, TensorArgument):
        names = [call.get(name) for name in longest]
        if not all(isinstance(number, (int, float)) and number > 0 for number in names):
            raise Unknown("packed sequences whose longest length is not recorded")
        lengths, note = (int(names[0]), int(names[1])), VARLEN_NOTE
    pairs = visible_pairs(
        *lengths, causal=causal, bottom_right=bottom_right, window=window, attention=attention
    )
    sequences = tokens / lengths[0]
    per_head = pairs * sequences
    return _counted(call, per_head, query[-2], query[-1], value[-1], backward=backward, note=note)


def _flash(call: Call, attention: Attention, *, backward: bool) -> Counted:
    window = _bound(call.get("window_size_left")), _bound(call.get("window_size_right"))
    return _kernel(
        call, attention, backward=backward, causal=bool(call.get("is_causal", False)),
        bottom_right=True, window=window, packed=call.get("cum_seq_q"), longest=("max_q", "max_k"),
    )  # fmt: skip


@formula("_flash_attention_forward", "_cudnn_attention_forward")
def flash(call: Call, attention: Attention) -> Counted:
    return _flash(call, attention, backward=False)


@formula("_flash_attention_backward", "_cudnn_attention_backward")
def flash_backward(call: Call, attention: Attention) -> Counted:
    return _flash(call, attention, backward=True)


def _efficient(call: Call, attention: Attention, *, backward: bool) -> Counted:
    """custom_mask_type: 0 none, 1 causal from the top left, 2 from the bottom right;
    window_size: keys that a query sees, its own among them."""
    kind = int(call.get("custom_mask_type", 0))
    size = _bound(call.get("window_size"))
    window = (size - 1 if size else None), None
    return _kernel(
        call, attention, backward=backward, causal=kind != 0, bottom_right=kind == 2,
        window=window, packed=call.get("cu_seqlens_q"), longest=("max_seqlen_q", "max_seqlen_k"),
    )  # fmt: skip


@formula("_efficient_attention_forward")
def efficient(call: Call, attention: Attention) -> Counted:
    return _efficient(call, attention, backward=False)


@formula("_efficient_attention_backward")
def efficient_backward(call: Call, attention: Attention) -> Counted:
    return _efficient(call, attention, backward=True)


@formula("_native_multi_head_attention")
def native_multi_head(call: Call, attention: Attention) -> Counted:
    """Projections of q, k and v, attention, and the projection of its output."""
    query, key, value = call.shape("query"), call.shape("key"), call.shape("value")
    width = int(call.given("embed_dim"))
    inputs = math.prod(query[:-1]) + math.prod(key[:-1]) + math.prod(value[:-1])
    projections = 2.0 * (inputs + math.prod(query[:-1])) * width * width
    pairs = 2.0 * query[0] * query[1] * key[1] * 2 * width
    mask = call.get("mask")
    note = MASK_NOTE if isinstance(mask, TensorArgument) else None
    return Counted(model=projections + pairs, note=note)
