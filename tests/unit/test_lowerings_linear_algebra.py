"""Decompositions, solvers and Fourier transforms against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.against_torch import check, sample

aten = torch.ops.aten


def _positive(*shape: int) -> torch.Tensor:
    x = sample(*shape)
    return x @ x.mT + 3 * torch.eye(shape[-1])


def test_solvers() -> None:
    a, b = _positive(2, 4, 4), sample(2, 4, 3)
    check("linalg_cholesky_ex", a, tolerance=1e-4)
    check("linalg_cholesky_ex", a, upper=True, tolerance=1e-4)
    check("linalg_inv_ex", a, tolerance=1e-4)
    check("_linalg_solve_ex", a, b, tolerance=1e-4)
    check("_linalg_solve_ex", a[0], sample(3, 4), left=False, tolerance=1e-4)
    check("linalg_solve_triangular", a.tril(), b, upper=False, tolerance=1e-4)
    check("cholesky_solve", b, torch.linalg.cholesky(a), tolerance=1e-4)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_solving_with_factors(adjoint: bool, left: bool) -> None:
    factors, pivots, _ = aten.linalg_lu_factor_ex(sample(2, 4, 4))
    b = sample(2, 4, 3) if left else sample(2, 3, 4)
    check("linalg_lu_solve", factors, pivots, b, left=left, adjoint=adjoint, tolerance=1e-3)


def test_factors_and_values() -> None:
    a = sample(2, 4, 4)
    check("linalg_lu_factor_ex", a)
    check("_linalg_eigh", _positive(4, 4), "L", False, tolerance=1e-4)
    check("_linalg_svd", a, False, False, tolerance=1e-4)
    check("linalg_matrix_exp", a / 4, tolerance=1e-4)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, float("inf")])
def test_distances(p: float) -> None:
    check("_cdist_forward", sample(3, 5), sample(4, 5, seed=1), p, None)
    grad, gaps = sample(3, 4), aten._cdist_forward(sample(3, 5), sample(4, 5, seed=1), p, None)
    check("_cdist_backward", grad, sample(3, 5), sample(4, 5, seed=1), p, gaps, tolerance=1e-4)


def test_cross() -> None:
    check("linalg_cross", sample(4, 3), sample(4, 3, seed=1), dim=-1)


@pytest.mark.parametrize("normalization", [0, 1, 2])
def test_fourier(normalization: int) -> None:
    wave: Any = sample(3, 8, dtype=torch.complex64)
    for forward in (True, False):
        check("_fft_c2c", wave, [0, 1], normalization, forward)
    check("_fft_r2c", sample(3, 8), [0, 1], normalization, True)
    check("_fft_r2c", sample(3, 8), [1], normalization, False)
    check("_fft_c2r", sample(3, 5, dtype=torch.complex64), [0, 1], normalization, 8,
          tolerance=1e-4)  # fmt: skip
