"""Random ops, held against torch by form, reproducibility and distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from scipy import stats
from torch.utils import _pytree as pytree

from tests.conformance.agreement import Disagreement, agree
from tests.conformance.samples import Sample

_RANDOM = frozenset({
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
    "uniform", "rand_like", "randn_like", "randint_like", "randint", "randn", "rand", "randperm",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "nn.functional.rrelu",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "normal.number_mean", "svd_lowrank", "pca_lowrank", "torch.ops.aten._safe_softmax.default",
})  # fmt: skip
#: Values that each side draws, in all, before their distributions are compared.
_DRAWN = 2_000
_MOST_RUNS = 60
#: Two samples of one distribution differ more than this once in a hundred million comparisons.
_LEAST_P = 1e-8


def is_random(op: Any, sample: Sample) -> bool:
    """Whether a call draws random numbers."""
    if op.name == "torch.ops.aten._safe_softmax.default":
        return False
    if op.name == "nn.functional.rrelu":
        return bool(sample.kwargs.get("training", False))
    if op.name.startswith("nn.functional.") and "dropout" in op.name:
        return bool(sample.kwargs.get("training", True))
    if op.name == "nn.functional.multi_head_attention_forward":
        return bool(sample.kwargs.get("training", True) and sample.args[9])
    if "dropout_p" in sample.kwargs:
        return bool(sample.kwargs["dropout_p"])
    return op.name in _RANDOM


def check(function: Callable[..., Any], op: Any, sample: Sample) -> None:
    """Raise Disagreement unless the device draws as the CPU does."""
    reference = op.inplace_variant if function is op.inplace_variant else op
    torch.manual_seed(7)
    want = sample.on_cpu().of(reference)
    first = _run(function, sample, 7)
    agree(first, want, values=False)
    again = _run(function, sample, 7)
    for a, b in zip(_values(first), _values(again), strict=True):
        if not torch.equal(a.nan_to_num(), b.nan_to_num()):
            raise Disagreement("one seed gave two results")
    count = sum(v.numel() for v in _values(want))
    if count == 0 or op.name in ("svd_lowrank", "pca_lowrank"):
        return
    runs = min(_MOST_RUNS, max(1, -(-_DRAWN // count)))
    ours, theirs = [_pooled(first)], [_pooled(want)]
    for run in range(1, runs):
        ours.append(_pooled(_run(function, sample, 100 + run)))
        torch.manual_seed(1000 + run)
        theirs.append(_pooled(sample.on_cpu().of(reference)))
    _same_distribution(torch.cat(ours), torch.cat(theirs))


def _run(function: Callable[..., Any], sample: Sample, seed: int) -> Any:
    torch.manual_seed(seed)
    return sample.on_device().of(function)


def _values(result: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(result)
    return [v.detach().cpu() for v in leaves if isinstance(v, torch.Tensor)]


def _pooled(result: Any) -> torch.Tensor:
    parts = []
    for value in _values(result):
        real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        parts.append(real.double().flatten())
    return torch.cat(parts)


def _same_distribution(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    if not torch.equal(ours.isnan().any(), theirs.isnan().any()):
        raise Disagreement("NaN on one side only")
    a, b = ours[~ours.isnan()].numpy(), theirs[~theirs.isnan()].numpy()
    if not len(a) or not len(b):
        return
    p = float(stats.ks_2samp(a, b).pvalue)
    if p < _LEAST_P:
        raise Disagreement(
            f"another distribution: Kolmogorov-Smirnov p = {p:.1e} over {len(a)} values, "
            f"mean {a.mean():.4g} instead of {b.mean():.4g}"
        )
