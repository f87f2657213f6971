"""Ops that torch runs as one kernel a backend must have, written out in other ops.

Each function is the op's meta kernel, which says what its results look like, and its
decomposition, from which the device makes one program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.nn import functional

Tensor = torch.Tensor
Written = TypeVar("Written", bound=Callable[..., Any])

#: Aten overloads, named as the dispatcher names them.
WHOLE_OPS: dict[str, Callable[..., Any]] = {}


def whole_op(name: str) -> Callable[[Written], Written]:
    """Register a function as what an aten overload computes."""

    def register(function: Written) -> Written:
        WHOLE_OPS[name] = function
        return function

    return register


def whole_op_decompositions() -> dict[Any, Callable[..., Any]]:
    """The ops as PyTorch's decomposition tables hold them."""
    return {getattr(torch.ops.aten, name).default: f for name, f in WHOLE_OPS.items()}


def register_metas() -> torch.library.Library:
    """Tell torch what the results look like; the library unregisters when collected."""
    library = torch.library.Library("aten", "IMPL")
    for name, function in WHOLE_OPS.items():
        library.impl(name, function, "Meta")
    # The in-place form, which has nothing to tell but that it returns what it was given.
    library.impl("embedding_renorm_", lambda self, *_: self, "Meta")
    return library


@whole_op("_thnn_fused_gru_cell")
def gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor,
    input_bias: Tensor | None = None, hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(hidden state, workspace); the workspace holds what the gradient needs."""
    if input_bias is not None and hidden_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    reset_in, update_in, new_in = input_gates.chunk(3, 1)
    reset_hidden, update_hidden, new_hidden = hidden_gates.chunk(3, 1)
    reset = (reset_in + reset_hidden).sigmoid()
    update = (update_in + update_hidden).sigmoid()
    new = (new_in + reset * new_hidden).tanh()
    state = new + update * (hx - new)
    return state, torch.cat([reset, update, new, hx, new_hidden], 1)


@whole_op("_thnn_fused_gru_cell_backward")
def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of the gates (of the input, of the state), the state, and the two biases."""
    reset, update, new, hx, new_hidden = workspace.chunk(5, 1)
    grad_update = grad_hy * (hx - new) * (1 - update) * update
    grad_new = grad_hy * (1 - update) * (1 - new * new)
    grad_reset = grad_new * new_hidden * (1 - reset) * reset
    grad_input = torch.cat([grad_reset, grad_update, grad_new], 1)
    grad_hidden = torch.cat([grad_reset, grad_update, grad_new * reset], 1)
    biases = (grad_input.sum(0), grad_hidden.sum(0)) if has_bias else (None, None)
    return grad_input, grad_hidden, grad_hy * update, *biases


@whole_op("embedding_renorm")
def embedding_renorm(self: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """The table with the rows that `indices` names made no longer than `max_norm`."""
    chosen = indices.reshape(-1)
    rows = self.index_select(0, chosen)
    norms = torch.linalg.vector_norm(rows, norm_type, 1, keepdim=True)
    shorter = rows * torch.where(norms > max_norm, max_norm / (norms + 1e-7), 1.0)
    return self.index_put([chosen], shorter.to(self.dtype))


_KEY_MASK, _PAIR_MASK = 1, 0


def _where_masked(mask: Tensor, mask_type: int | None, scores: Tensor) -> Tensor:
    """A module's mask, laid out to broadcast over scores [batch, heads, queries, keys]."""
    if mask_type == _KEY_MASK and mask.dim() == 2:
        mask = mask[:, None, None, :]
    return mask.to(torch.bool).expand(scores.shape)


@whole_op("_native_multi_head_attention")
def native_multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int,
    qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor,
    mask: Tensor | None = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(output, attention weights or nothing) of a multi-head attention in evaluation mode."""
    weights = qkv_weight.chunk(3, 0)
    biases = qkv_bias.chunk(3, 0)
    q, k, v = (
        functional.linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    scores = (q / math.sqrt(embed_dim // num_head)) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(_where_masked(mask, mask_type, scores), -math.inf)
    attention = scores.softmax(-1)
    output = functional.linear((attention @ v).transpose(1, 2).flatten(-2), proj_weight, proj_bias)
    if not need_weights:
        return output, None
    return output, attention.mean(1) if average_attn_weights else attention


@whole_op("_transformer_encoder_layer_fwd")
def transformer_encoder_layer_fwd(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor,
    ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """A whole encoder layer in evaluation mode."""

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), weight, bias, eps)

    def attend(x: Tensor) -> Tensor:
        return native_multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask,
            False, True, mask_type,
        )[0]  # fmt: skip

    def feed_forward(x: Tensor) -> Tensor:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        inner = functional.gelu(inner) if use_gelu else functional.relu(inner)
        return functional.linear(inner, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(norm(src, norm_weight_1, norm_bias_1))
        return x + feed_forward(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attend(src), norm_weight_1, norm_bias_1)
    return norm(x + feed_forward(x), norm_weight_2, norm_bias_2)
