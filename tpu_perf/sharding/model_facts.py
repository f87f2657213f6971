"""What the sharding rules need to know of a torch model's parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_perf.sharding.assignment import ParameterFacts
from tpu_perf.sharding.transformer_layers import role_of

if TYPE_CHECKING:
    import torch


def parameter_facts(model: torch.nn.Module) -> list[ParameterFacts]:
    """Facts of every parameter, shared ones once, in the order of `named_parameters`."""
    modules = dict(model.named_modules())
    found = []
    for name, parameter in model.named_parameters():
        path, _, own = name.rpartition(".")
        module_class = type(modules[path]).__name__
        role = role_of(path, module_class, own, parameter.ndim)
        found.append(
            ParameterFacts(
                name=name,
                shape=tuple(parameter.shape),
                role=role,
                inputs_first=module_class == "Conv1D",
                unit=_head_width(modules, path) if role in ("column", "row", "fused") else 1,
            )
        )
    return found


def _head_width(modules: dict[str, torch.nn.Module], path: str) -> int:
    """Elements of one head of the attention that a layer belongs to, 1 outside attention."""
    parents = [path, path.rpartition(".")[0]]
    if path.endswith("output.dense"):  # BERT keeps the heads' width in a sibling
        parents.append(f"{parents[1].rpartition('.')[0]}.self")
    for parent in parents:
        for attribute in ("head_dim", "attention_head_size"):
            width = getattr(modules.get(parent), attribute, None)
            if isinstance(width, int) and width > 0:
                return width
    return 1
