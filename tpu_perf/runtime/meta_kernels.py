"""Shapes of ops for which torch has no meta kernel, or one with a CUDA kernel's restrictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor


def grouped_mm(
    self: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Torch's asks for bfloat16 and 16-byte rows, which are needs of a CUDA kernel."""
    torch._check(self.dim() in (2, 3) and mat2.dim() in (2, 3),
                 lambda: f"Multiplicands must be 2D or 3D but got mat_a.dim()={self.dim()} and "
                         f"mat_b.dim()={mat2.dim()}")  # fmt: skip
    torch._check(self.dtype == mat2.dtype and self.is_floating_point(),
                 lambda: f"expected two floating-point matrices of one dtype but got {self.dtype} "
                         f"and {mat2.dtype}")  # fmt: skip
    torch._check((offs is not None) == (self.dim() == 2 or mat2.dim() == 2),
                 lambda: "Have to provide offsets if there is a 2d matrix, or no offset if both "
                         "matrices are 3d")  # fmt: skip
    if self.dim() == 3 or mat2.dim() == 3:
        torch._check(self.size(-1) == mat2.size(-2),
                     lambda: "contraction dimension of mat_a and mat_b must match")  # fmt: skip
    if self.dim() == 2:
        size: list[Any] = [self.size(0), mat2.size(-1)]
        if mat2.dim() == 2:
            assert offs is not None
            size = [offs.size(0), *size]
    else:
        size = [self.size(1), mat2.size(1)] if mat2.dim() == 2 else [
            self.size(0), self.size(1), mat2.size(-1)]  # fmt: skip
    return self.new_empty(size, dtype=out_dtype or self.dtype)


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor,
    blank: int = 0, zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Lengths in a tensor: the longest target is not known, the width of the targets bounds it."""
    longest = targets.size(-1)
    if log_probs.dim() == 2:
        return log_probs.new_empty(()), log_probs.new_empty(log_probs.size(0), 2 * longest + 1)
    time, batch = log_probs.size(0), log_probs.size(1)
    return log_probs.new_empty(batch), log_probs.new_empty(batch, time, 2 * longest + 1)


def ctc_loss_backward(grad: Tensor, log_probs: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


#: By overload, as the dispatcher names them.
META_KERNELS: dict[str, Callable[..., Any]] = {
    "_grouped_mm": grouped_mm,
    "_ctc_loss.Tensor": ctc_loss,
    "_ctc_loss_backward": ctc_loss_backward,
    "_ctc_loss_backward.Tensor": ctc_loss_backward,
}


def register(library: torch.library.Library) -> None:
    """Make them known to the dispatcher and to fake tensors."""
    for name, kernel in META_KERNELS.items():
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        op.py_kernels.pop(torch._C.DispatchKey.Meta, None)
        op.py_impl(torch._C.DispatchKey.Meta)(kernel)
        library.impl(name, kernel, "Meta", allow_override=True)
