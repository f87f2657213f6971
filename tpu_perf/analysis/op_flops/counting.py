"""FLOPs of a call, or why they are not known; and the conventions under which they count."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tpu_perf.analysis.op_flops.call import Call, CallFormatError, base_name
from tpu_perf.analysis.op_flops.formulas import FORMULAS, Attention, Counted, Unknown

CAUSAL: Attention = "causal"
FULL: Attention = "full"

CONVENTION = (
    "model FLOPs: matrix products, convolutions and attention by formula from shapes, 2 FLOPs a "
    "multiply-add; elementwise ops, reductions, embeddings, views and copies count zero (the MFU "
    "convention); of experts only the rows routed to them; padding taps of convolutions counted"
)
_ATTENTION = {
    CAUSAL: (
        "attention: causal counted as half (n^2/2 pairs) where the op says that it is causal; "
        "attention that reaches the device as separate products counts in full"
    ),
    FULL: "attention: causal counted in full (n^2 pairs); a sliding window counts its width",
}

#: Ops without a formula whose names say that they hold products.
_PRODUCTS = re.compile(
    r"(^|_)(mm|bmm|matmul|linear|conv|convolution|attention|attn|lstm|gru|rnn|einsum|linalg|"
    r"cholesky|svd|qr|lu|geqrf|ormqr|lstsq|eig|inverse|triangular|det|slogdet|pinverse|solve|"
    r"matrix|cdist|pdist|multihead|transformer|gemm|dot|scan|map|loop|cond)(\d?d|_|$)|"
    r"mm(_|$)|attention"
)
#: Of those, ops that compute no product for all their name.
_HARMLESS = frozenset(
    "aten::" + name
    for name in (
        *("_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl", "linspace"),
        *(
            "_thnn_fused_gru_cell",
            "_thnn_fused_gru_cell_backward",
            "_thnn_fused_lstm_cell_backward",
        ),
        *("linalg_vector_norm", "linalg_cross", "linalg_diagonal", "_fused_sdp_choice"),
        *("upsample_linear1d", "upsample_linear1d_backward", "im2col", "matrix_H"),
        *("linalg__powsum", "_cudnn_rnn_flatten_weight", "_use_cudnn_rnn_flatten_weight"),
        *("_thnn_differentiable_gru_cell_backward", "_thnn_differentiable_lstm_cell_backward"),
        *("_linalg_check_errors", "lu_unpack", "_weight_norm_interface"),
    )
)
#: Namespaces whose ops are torch's own; of others' ops nothing is known.
_KNOWN = frozenset(("aten", "prims", "prim", "c10d", "_c10d_functional", "c10d_functional"))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFlops:
    """FLOPs of one call; None with a reason where they are not known.

    `executed` also holds what the op itself computes again (attention's backward).
    """

    model: float | None
    executed: float | None
    reason: str | None = None
    note: str | None = None


_ZERO = OpFlops(model=0.0, executed=0.0)


def conventions(attention: Attention) -> list[str]:
    """The sentences to print beside model FLOPs."""
    return [CONVENTION, _ATTENTION[attention]]


def flops_of_call(call: Call, attention: Attention = CAUSAL) -> OpFlops:
    """FLOPs of one execution of the call. Never raises: a row that makes no sense is unknown."""
    name = _functional(call.name)
    if name not in FORMULAS:
        return flops_of_op_name(call.op)
    try:
        found = FORMULAS.get(name)(call, attention)
    except Unknown as error:
        return OpFlops(model=None, executed=None, reason=f"{call.op}: {error}")
    except (CallFormatError, ValueError, TypeError, IndexError, AttributeError) as error:
        return OpFlops(model=None, executed=None, reason=f"{call.op}: not readable, {error}")
    counted = found if isinstance(found, Counted) else Counted(model=found)
    executed = counted.model if counted.executed is None else counted.executed
    return OpFlops(model=counted.model, executed=executed, note=counted.note)


def flops_of_op_name(op: str) -> OpFlops:
    """FLOPs of an op of whose arguments nothing is known: zero if it can hold no product."""
    name = _functional(base_name(op))
    namespace, _, short = name.partition("::")
    if name in FORMULAS:
        return OpFlops(model=None, executed=None, reason=f"{op}: its shapes were not recorded")
    if namespace not in _KNOWN:
        return OpFlops(model=None, executed=None, reason=f"{op}: not an op of torch's own")
    if name not in _HARMLESS and _PRODUCTS.search(short):
        return OpFlops(model=None, executed=None, reason=f"{op}: no formula, may hold products")
    return _ZERO


def _functional(name: str) -> str:
    """The name without the underscore of an op that writes into its first argument."""
    return name.removesuffix("_") if name.removesuffix("_") in FORMULAS else name
