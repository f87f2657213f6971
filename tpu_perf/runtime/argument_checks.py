"""What torch's CPU kernels refuse and its meta kernels let pass: the same errors, before a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from tpu_perf.runtime.buffers import contiguous_strides

Tensor = torch.Tensor
Check = TypeVar("Check", bound=Callable[..., None])

#: Functional overload -> a function of its arguments (meta tensors) that raises.
CHECKS: dict[str, Callable[..., None]] = {}


def refuses(*ops: str) -> Callable[[Check], Check]:
    """Register a check of the arguments of functional aten overloads."""

    def register(function: Check) -> Check:
        for op in ops:
            CHECKS[op if "." in op else f"{op}.default"] = function
        return function

    return register


_INTERNAL = (
    "unsupported operation: more than one element of the written-to tensor refers to a single "
    "memory location. Please clone() the tensor before performing the operation."
)
_SHARED = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to "
    "a single memory location. Please clone() the tensor before performing the operation."
)
#: Ops that read their inputs after they began to write, so that these may not even be the same
#: tensor; of the second group, all inputs but `self` may not.
_NO_OVERLAP = frozenset({
    "cat", "gather", "index_select", "kthvalue", "masked_select", "median", "mode", "nanmedian",
    "sort", "take", "topk",
})  # fmt: skip
_NO_OVERLAP_BUT_SELF = frozenset({
    "scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill",
    "masked_fill", "masked_scatter", "put", "index_reduce",
})  # fmt: skip


def check_written(out: Tensor) -> None:
    """Raise for a tensor to write two of whose elements lie in one place."""
    if out.numel() and any(n > 1 and s == 0 for n, s in zip(out.shape, out.stride(), strict=True)):
        raise RuntimeError(_INTERNAL)


def check_overlaps(
    name: str, tensors: Sequence[Tensor], slots: Sequence[int], written: Sequence[int],
    first_is_self: bool,
) -> None:  # fmt: skip
    """Raise where a written tensor shares memory with another argument in a way that leaves the
    result open. `slots` tells which tensors lie in one buffer."""
    base = name.partition(".")[0]
    for position in written:
        out = tensors[position]
        for other, tensor in enumerate(tensors):
            if other in written or slots[other] != slots[position]:
                continue
            whole = base in _NO_OVERLAP or (
                base in _NO_OVERLAP_BUT_SELF and not (first_is_self and other == 0)
            )
            check_overlap(out, tensor, whole_too=whole)


def check_overlap(out: Tensor, tensor: Tensor, whole_too: bool) -> None:
    """Raise if two tensors over one buffer share a part of it, or (`whole_too`) all of it."""
    if not (_dense(out) and _dense(tensor)) or not out.numel() or not tensor.numel():
        return
    size = out.element_size()
    first, other = out.storage_offset() * size, tensor.storage_offset() * tensor.element_size()
    end, other_end = first + out.numel() * size, other + tensor.numel() * tensor.element_size()
    if end <= other or other_end <= first:
        return
    same = first == other and end == other_end and out.stride() == tensor.stride()
    if whole_too or not same:
        raise RuntimeError(_SHARED)


def _dense(tensor: Tensor) -> bool:
    """Whether a tensor fills its range of memory, each place once."""
    pairs = [(s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1]
    pairs.sort(reverse=True)
    return tuple(s for s, _ in pairs) == contiguous_strides(tuple(n for _, n in pairs))


@refuses("amax", "amin")
def extremes(self: Tensor, dim: Any = (), keepdim: bool = False) -> None:
    _check_extremes(self, dim)


@refuses("aminmax")
def both_extremes(self: Tensor, *, dim: int | None = None, keepdim: bool = False) -> None:
    if dim is None and self.numel() == 0:
        raise RuntimeError("aminmax(): cannot compute aminmax over an empty dimension as the "
                           "operation has no identity.")  # fmt: skip


def _check_extremes(self: Tensor, dim: Any) -> None:
    if self.numel():
        return
    dims = [dim] if isinstance(dim, int) else list(dim)
    if not dims:
        raise RuntimeError(
            "amax(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
            "reduction dim with the 'dim' argument."
        )
    for d in dims:
        if -self.dim() <= d < self.dim() and self.shape[d] == 0:
            raise IndexError(f"amax(): Expected reduction dim {d} to have non-zero size.")


@refuses("bucketize.Tensor", "bucketize.Scalar")
def bucketize(self: Any, boundaries: Tensor, **options: Any) -> None:
    if boundaries.dim() != 1:
        raise RuntimeError(
            f"boundaries tensor must be 1 dimension, but got dim({boundaries.dim()})"
        )


@refuses("index_add")
def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, **options: Any) -> None:
    if not self.dim() or not -self.dim() <= dim < self.dim():
        return
    dim %= self.dim()
    theirs = [n for i, n in enumerate(source.shape) if i != dim]
    if source.dim() != self.dim() or theirs != [n for i, n in enumerate(self.shape) if i != dim]:
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(self.shape)} source.shape = {list(source.shape)}"
        )


@refuses("masked_scatter")
def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> None:
    if mask.dtype is not torch.bool:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )


@refuses("as_strided_scatter")
def as_strided_scatter(
    self: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int],
    storage_offset: int | None = None,
) -> None:  # fmt: skip
    if 0 in size:
        return
    reach = sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + (storage_offset or 0)
    room = sum((n - 1) * s for n, s in zip(self.shape, self.stride(), strict=True))
    if reach > room:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset "
            f"{storage_offset or 0} are out of bounds for a storage of {room + 1} elements"
        )


@refuses("cat")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> None:
    for position, tensor in enumerate(tensors):
        if tensor.dim() == 0:
            raise RuntimeError(
                f"zero-dimensional tensor (at position {position}) cannot be concatenated"
            )


@refuses("complex", "polar")
def parts(real: Tensor, imag: Tensor) -> None:
    if real.dtype is not imag.dtype:
        names = {torch.float16: "Half", torch.float32: "Float", torch.float64: "Double"}
        raise RuntimeError(
            f"Expected object of scalar type {names.get(real.dtype, real.dtype)} but got scalar "
            f"type {names.get(imag.dtype, imag.dtype)} for second argument"
        )


@refuses("convolution")
def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], *options: Any,
) -> None:  # fmt: skip
    if any(n < 0 for n in padding):
        raise RuntimeError("negative padding is not supported")
    if any(n <= 0 for n in dilation):
        raise RuntimeError("dilation should be greater than zero")
