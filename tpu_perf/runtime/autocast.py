"""torch.autocast("tpu"): which ops run in the low-precision dtype, which in float32.

The lists follow the ones PyTorch documents for CUDA and CPU autocast
(https://pytorch.org/docs/stable/amp.html#autocast-op-reference).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LOW_PRECISION = (
    "mm", "bmm", "addmm", "addbmm", "baddbmm", "addmv", "addr", "matmul", "linear", "mv", "einsum",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "convolution", "_convolution", "chain_matmul", "linalg_multi_dot",
    "scaled_dot_product_attention", "prelu", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "_convolution.deprecated",
    "conv_tbc", "linalg_vecdot", "_scaled_dot_product_flash_attention",
)  # fmt: skip
FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p",
    "reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "softplus", "layer_norm", "native_layer_norm", "group_norm", "norm.Scalar",
    "norm.ScalarOpt_dim",
    "nuclear_norm",
    "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss",
    "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss",
    "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist",
    "cdist", "renorm", "logsumexp", "rms_norm",
    "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "frobenius_norm.dim",
    "nuclear_norm.dim", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip
#: Ops with a dtype argument: asked for float32 results when the caller names no dtype.
FLOAT32_BY_DTYPE = (
    "softmax.int", "log_softmax.int", "sum", "sum.dim_IntList", "prod", "prod.dim_int", "cumsum",
    "cumprod",
)  # fmt: skip
WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler",
    "index_put", "tensordot", "scatter_add",
)  # fmt: skip


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        eligible = (
            value.is_floating_point() and value.dtype != torch.float64
            and value.device.type == "tpu"
        )  # fmt: skip
        return value.to(dtype) if eligible and value.dtype != dtype else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(v, dtype) for v in value)
    return value


def outside_autocast() -> Any:
    """Inside, ops on the device are not cast."""
    return torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))
    )


def _to_low(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("tpu")
        with outside_autocast():
            return op(*_cast(args, dtype), **{k: _cast(v, dtype) for k, v in kwargs.items()})

    return kernel


def _to_float32(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with outside_autocast():
            return op(
                *_cast(args, torch.float32),
                **{k: _cast(v, torch.float32) for k, v in kwargs.items()},
            )

    return kernel


def _with_float32_result(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        low = args[0].is_floating_point() and args[0].dtype in (torch.bfloat16, torch.float16)
        if (
            low
            and kwargs.get("dtype") is None
            and not any(isinstance(a, torch.dtype) for a in args)
        ):
            kwargs["dtype"] = torch.float32
        with outside_autocast():
            return op(*args, **kwargs)

    return kernel


def _to_widest(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        found = [
            t for t in torch.utils._pytree.tree_leaves((args, kwargs))
            if isinstance(t, torch.Tensor) and t.is_floating_point()
        ]  # fmt: skip
        dtype = torch.get_autocast_dtype("tpu")
        if any(t.dtype == torch.float32 for t in found):
            dtype = torch.float32
        with outside_autocast():
            return op(*_cast(args, dtype), **{k: _cast(v, dtype) for k, v in kwargs.items()})

    return kernel


def _unsafe(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "binary_cross_entropy and BCELoss are unsafe to autocast: the logarithm of a rounded "
        "probability loses the small ones. Use binary_cross_entropy_with_logits or "
        "BCEWithLogitsLoss on what goes into the sigmoid, or leave autocast for this call with "
        "torch.autocast('tpu', enabled=False)"
    )


def register_autocast() -> list[torch.library.Library]:
    """Register the lists; ops outside them run in the dtype of their inputs."""
    through = torch.library.Library("_", "IMPL")
    through.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = torch.library.Library("aten", "IMPL")
    lists = (
        (LOW_PRECISION, _to_low),
        (FLOAT32, _to_float32),
        (FLOAT32_BY_DTYPE, _with_float32_result),
        (WIDEST, _to_widest),
    )
    for names, make in lists:
        for name in names:
            base, _, overload = name.partition(".")
            packet = getattr(torch.ops.aten, base, None)
            op = getattr(packet, overload or "default", None) if packet is not None else None
            if op is not None:
                library.impl(name, make(op), "AutocastPrivateUse1")
    library.impl("binary_cross_entropy", _unsafe, "AutocastPrivateUse1")
    return [through, library]
