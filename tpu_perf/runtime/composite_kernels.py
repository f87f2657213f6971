"""Kernels above autograd, for composite ops that the device takes whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
aten = torch.ops.aten


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: Any = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Attention as one program where shapes allow, else torch's own composition of ops.

    Registered above autograd, because torch asks only C++ backends which kernel they prefer.
    """
    grouped = query.shape[-3] == key.shape[-3] or enable_gqa
    if (
        query.dim() == key.dim() == value.dim() == 4
        and grouped
        and query.is_floating_point()
        and not (attn_mask is not None and attn_mask.requires_grad)
    ):
        if not 0.0 <= dropout_p <= 1.0:
            raise RuntimeError(
                f"dropout probability has to be between 0 and 1, but got {dropout_p}"
            )
        if attn_mask is not None and is_causal:
            raise RuntimeError("attn_mask must not be given with is_causal=True")
        result: Tensor = aten._scaled_dot_product_fused_attention_overrideable(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale
        )[0]
        return result
    composed: Tensor = aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale,
        enable_gqa=enable_gqa,
    )[0]  # fmt: skip
    return composed


#: Aten names and their kernels, registered for AutogradPrivateUse1 and PrivateUse1.
ABOVE_AUTOGRAD: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": scaled_dot_product_attention,
}
