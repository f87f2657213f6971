"""Kernels of linear algebra that read a value, or whose results lie in memory as LAPACK's do."""

from __future__ import annotations

from typing import Any

import torch

from tpu_perf.runtime.aten_kernels import by_hand, table_kernel
from tpu_perf.runtime.buffers import contiguous_strides
from tpu_perf.runtime.meta_linear_algebra import column_major, is_vector

Tensor = torch.Tensor
aten = torch.ops.aten


@by_hand("cholesky")
def cholesky(self: Tensor, upper: bool = False) -> Tensor:
    """Raises torch's error for a matrix that is not positive definite."""
    factor: Tensor
    factor, info = aten.linalg_cholesky_ex(self, upper=upper)
    torch._linalg_check_errors(info, "cholesky", is_matrix=self.dim() == 2)
    return factor


@by_hand("linalg_lstsq")
def lstsq(
    self: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    driver = driver or "gelsy"  # torch's choice on the CPU
    solution, residuals, rank, values = table_kernel("linalg_lstsq")(self, b, rcond, driver=driver)
    if residuals.numel() and rank.numel() and not bool((rank == self.shape[-1]).all()):
        residuals = residuals.new_empty(0)  # torch gives them for full rank only, and looks
    if self.shape[-2] > self.shape[-1]:
        solution = _top_of_right_side(self, b, solution)
    return solution, residuals, rank, values


def _top_of_right_side(A: Tensor, b: Tensor, solution: Tensor) -> Tensor:
    """The solution where LAPACK leaves it: in the first rows of what was the right side."""
    vector = is_vector(A, b)
    shape = tuple(b.shape)
    stride = contiguous_strides(shape) if vector else column_major(shape)
    whole = torch.empty_strided(shape, stride, dtype=b.dtype, device=b.device)
    top = whole.narrow(-1 if vector else -2, 0, A.shape[-1])
    return top.copy_(solution)


@by_hand("linalg_lstsq.out")
def lstsq_out(
    self: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None,
    solution: Tensor, residuals: Tensor, rank: Tensor, singular_values: Tensor,
) -> Any:  # fmt: skip
    outs = (solution, residuals, rank, singular_values)
    for out, made in zip(outs, lstsq(self, b, rcond, driver=driver), strict=True):
        if out.shape != made.shape:
            out.resize_(made.shape)
            if out is solution and made.dim() > 1:
                out.as_strided_(made.shape, column_major(made.shape))
        out.copy_(made)
    return outs
