"""Shapes and strides of factorizations that torch's meta device does not know."""

from __future__ import annotations

from typing import Any

import torch

from tpu_perf.runtime.meta_kernels import forms

Tensor = torch.Tensor
DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


def column_major(shape: Any) -> tuple[int, ...]:
    """Strides of matrices stored column by column, as LAPACK leaves its results."""
    *batch, rows, columns = shape
    strides = [1, max(rows, 1)]
    step = max(rows, 1) * max(columns, 1)
    for n in reversed(batch):
        strides.insert(0, step)
        step *= max(n, 1)
    return tuple(strides)


@forms("geqrf")
def geqrf(self: Tensor) -> tuple[Tensor, Tensor]:
    if self.dim() < 2:
        raise RuntimeError("torch.geqrf: input must have at least 2 dimensions.")
    if not (self.is_floating_point() or self.is_complex()):
        raise NotImplementedError(f"geqrf is not implemented for {self.dtype}")
    packed = torch.empty_strided(
        self.shape, column_major(self.shape), dtype=self.dtype, device=self.device
    )
    return packed, self.new_empty((*self.shape[:-2], min(self.shape[-2:])))


def is_vector(A: Any, b: Any) -> bool:
    """Whether the right side of lstsq is a (batch of) vectors."""
    return b.ndim == 1 or (b.ndim == A.ndim - 1 and tuple(b.shape) == tuple(A.shape[:-1]))


@forms("linalg_lstsq")
def linalg_lstsq(
    self: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_lstsq(self, b, driver)
    vector = is_vector(self, b)
    rows, columns = self.shape[-2:]
    batch = tuple(self.shape[:-2])
    sides = 1 if vector else b.shape[-1]
    shape = (*batch, columns) if vector else (*batch, columns, sides)
    strides = None if vector else column_major(shape)
    solution = self.new_empty(shape)
    if strides is not None:
        solution = torch.empty_strided(shape, strides, dtype=self.dtype, device=self.device)
    real = self.dtype.to_real()
    nothing = self.new_empty((0,), dtype=real)
    residuals = nothing
    if rows > columns and driver in ("gels", "gelsd", "gelss"):
        residuals = self.new_empty((*batch, sides), dtype=real)
    values = nothing
    if driver in ("gelsd", "gelss"):
        values = self.new_empty((*batch, min(rows, columns)), dtype=real)
    rank_shape = (0,) if driver == "gels" else batch
    return solution, residuals, self.new_empty(rank_shape, dtype=torch.int64), values


def _check_lstsq(A: Tensor, b: Tensor, driver: str | None) -> None:
    gap = A.dim() - b.dim()
    side = -1 if is_vector(A, b) else -2
    problems = {
        "input must have at least 2 dimensions.": A.dim() < 2,
        "other must have at least 1 dimension.": b.dim() < 1,
        "input.dim() must be greater or equal to other.dim() and (input.dim() - other.dim()) <= 1":
            not 0 <= gap <= 1,
        f"Expected input and other to have the same dtype, but got input's dtype {A.dtype} and "
        f"other's dtype {b.dtype}": A.dtype != b.dtype,
        f"parameter `driver` should be one of ({', '.join(DRIVERS)})":
            driver is not None and driver not in DRIVERS,
    }  # fmt: skip
    for problem, found in problems.items():
        if found:
            raise RuntimeError(f"torch.linalg.lstsq: {problem}")
    if b.shape[side] != A.shape[-2]:
        raise RuntimeError(
            f"torch.linalg.lstsq: input.size(-2) should match other.size({side}), but they are "
            f"{A.shape[-2]} and {b.shape[side]}"
        )
    if A.shape[:-2] != b.shape[: b.dim() + side]:
        raise RuntimeError(
            f"torch.linalg.lstsq: batches {list(A.shape[:-2])} and "
            f"{list(b.shape[: b.dim() + side])} differ; expand one of them"
        )
    if not (A.is_floating_point() or A.is_complex()):
        raise RuntimeError("torch.linalg.lstsq: input must be of a floating or complex dtype")
