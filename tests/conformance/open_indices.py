"""Where several places are right answers, an op's indices are compared by what they select."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.conformance.samples import Sample

#: Op -> position of `dim` among the arguments after the input. Where values tie, torch leaves open
#: which place each of these names; the sorts are exempt when told to be stable.
_OPEN = {"argsort": 0, "sort": 0, "kthvalue": 1, "mode": 0, "topk": 1}


def has_open_indices(op: Any, sample: Sample) -> bool:
    """Whether ties make several answers of this call right."""
    return op.name in _OPEN and not sample.kwargs.get("stable", False)


def by_what_they_select(op: Any, sample: Sample, result: Any) -> Any:
    """The result with every tensor of indices replaced by the input's values there. Indices that
    name one place twice, where torch names each once, stay as they are."""
    source = sample.on_cpu().input.detach()
    position = _OPEN[op.name]
    dim = sample.kwargs.get("dim", sample.args[position] if len(sample.args) > position else -1)
    reduces = op.name in ("kthvalue", "mode")

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or (len(leaves) > 1 and value is leaves[0]):
            return value
        index = value.detach().cpu()
        along = index.unsqueeze(dim) if reduces and index.dim() < source.dim() else index
        if not source.dim():
            return value
        ordered = along.sort(dim).values
        if not reduces and (ordered.diff(dim=dim) == 0).any():
            return value
        return source.gather(dim, along).to(value.device)

    leaves = pytree.tree_leaves(result)
    return pytree.tree_map(leaf, result)
