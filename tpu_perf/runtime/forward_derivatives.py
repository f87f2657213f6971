"""What forward-mode derivatives ask of a device: tangents laid out like their primals."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from tpu_perf.runtime.aten_kernels import by_hand
from tpu_perf.runtime.buffers import buffer_of
from tpu_perf.runtime.torch_private import offset_of

Tensor = torch.Tensor


def carrying_tangents() -> bool:
    """Whether forward-mode derivatives are being computed, for which torch has no formula of some
    whole ops."""
    return forward_ad._current_level >= 0


def _storage_numel(tensor: Tensor) -> int:
    """Elements of the tensor's dtype in its buffer: results of ops have storages of no bytes."""
    return buffer_of(tensor).spec.nbytes // tensor.element_size()


@by_hand("_has_same_storage_numel")
def has_same_storage_numel(self: Tensor, other: Tensor) -> bool:
    return _storage_numel(self) == _storage_numel(other)


@by_hand("_new_zeros_with_same_feature_meta")
def new_zeros_with_same_feature_meta(
    self: Tensor, other: Tensor, *, self_num_batch_dims: int = 0
) -> Tensor:
    """Zeros of the dtype of `self` and the layout of `other`, behind batch dims of `self`."""
    batch: list[Any] = list(self.shape[:self_num_batch_dims])
    count = _storage_numel(other)
    flat = torch.zeros((*batch, count), dtype=self.dtype, device=self.device)
    strides = [*flat.stride()[:self_num_batch_dims], *other.stride()]
    return flat.as_strided([*batch, *other.shape], strides, offset_of(other))
