"""Kernels above autograd, for composite ops that the device takes whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tpu_perf.runtime.forward_derivatives import carrying_tangents
from tpu_perf.runtime.torch_private import (
    WHOLE_AUTOGRAD_KEYS,
    dispatch_modes,
    fused_attention_allowed,
    redispatch_linear,
)

Tensor = torch.Tensor
aten = torch.ops.aten


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: Any = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Attention as one program where shapes allow, else torch's own composition of ops.

    Registered above autograd, because torch asks only C++ backends which kernel they prefer.
    """
    if (
        query.dim() == key.dim() == value.dim() == 4
        and query.shape[0] == key.shape[0] == value.shape[0]
        and (enable_gqa or query.shape[1] == key.shape[1] == value.shape[1])
        and any(allowed() for allowed in fused_attention_allowed)
        and query.is_floating_point()
        and not (attn_mask is not None and attn_mask.requires_grad)
        and not carrying_tangents()
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
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        # The composition adds the mask; torch, too, makes the summand before it.
        allowed_keys = attn_mask
        attn_mask = torch.zeros_like(allowed_keys, dtype=query.dtype)
        attn_mask = attn_mask.masked_fill(allowed_keys.logical_not(), float("-inf"))
    composed: Tensor = aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale,
        enable_gqa=enable_gqa,
    )[0]  # fmt: skip
    return composed


_PLAIN = (Tensor, torch.nn.Parameter)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear as one op with torch's own derivative, where that has one: not for complex numbers,
    and not forward.

    Whoever watches ops (a subclass, a dispatch mode) sees torch's composition, as on a CPU.
    """
    if (
        input.__class__ not in _PLAIN
        or weight.__class__ not in _PLAIN
        or weight.dim() != 2
        or not weight.is_floating_point()
        or dispatch_modes()
        or carrying_tangents()
    ):
        composed: Tensor = aten.linear.default.decompose(input, weight, bias)
        return composed
    result: Tensor = redispatch_linear(WHOLE_AUTOGRAD_KEYS, input, weight, bias)
    return result


#: Aten names and their kernels. Those above autograd replace torch's derivative.
ABOVE_AUTOGRAD: dict[str, Callable[..., Any]] = {
    "linear": linear,
    "scaled_dot_product_attention": scaled_dot_product_attention,
}
#: The same for tensors that need no derivative, where the table has no kernel.
BELOW_AUTOGRAD = {"scaled_dot_product_attention": scaled_dot_product_attention}
