"""Moves sample inputs to device "tpu" with their strides, offsets and shared storages."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

DEVICE = "tpu"


class Mover:
    """Copies tensors to a device; those over one storage share one storage there too."""

    def __init__(self, device: str = DEVICE) -> None:
        self.device = device
        self.storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def move(self, value: Any) -> Any:
        """A structure with copies of its tensors, and its devices, on the device."""
        return pytree.tree_map(self._leaf, value)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.device) and value.type == "cpu":
            return torch.device(self.device)
        if isinstance(value, str) and value == "cpu":
            return self.device
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            return tensor.detach().to(self.device, copy=True).requires_grad_(tensor.requires_grad)
        plain = tensor.detach()
        conjugated, negated = plain.is_conj(), plain.is_neg()
        if conjugated:
            plain = plain.conj()
        if negated:
            plain = torch._neg_view(plain)
        base = self._storage(plain)
        moved = base.as_strided(plain.size(), plain.stride(), plain.storage_offset())
        if conjugated:
            moved = moved.conj()
        if negated:
            moved = torch._neg_view(moved)
        result = moved.detach().requires_grad_(tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(result, tensor.requires_grad)
        return result

    def _storage(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = (storage.data_ptr(), tensor.dtype)
        # An empty storage has no address of its own to be known by.
        if storage.nbytes() and key in self.storages:
            return self.storages[key]
        count = storage.nbytes() // tensor.element_size()
        flat = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (count,), (1,))
        moved = flat.to(self.device, copy=True)
        if storage.nbytes():
            self.storages[key] = moved
        return moved


def moved_keywords(keywords: dict[str, Any], is_factory: bool) -> dict[str, Any]:
    """Keyword arguments for the device: "device" names it."""
    if is_factory or keywords.get("device") is not None:
        return {**keywords, "device": DEVICE}
    return keywords
