"""Solvers and products of dense matrices, batched over the leading dims."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tpu_perf.runtime.lowerings.factorizations import adjoint_of, lu_with_info, transposed
from tpu_perf.runtime.lowerings.precision import limits, wide
from tpu_perf.runtime.lowerings.registry import Call, lowers
from tpu_perf.runtime.meta_linear_algebra import is_vector


def _as_columns(A: jax.Array, B: jax.Array) -> tuple[jax.Array, bool]:
    """The right side as matrices; a batch of vectors is told apart by its shape, as in torch."""
    vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    return (B[..., None], True) if vector else (B, False)


@lowers("_linalg_solve_ex")
def solve(
    call: Call, A: jax.Array, B: jax.Array, *, left: bool = True, check_errors: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    columns, vector = _as_columns(A, B)
    batch = jnp.broadcast_shapes(A.shape[:-2], columns.shape[:-2])
    matrix = jnp.broadcast_to(A, (*batch, *A.shape[-2:]))
    columns = jnp.broadcast_to(columns, (*batch, *columns.shape[-2:]))
    if left or vector:
        found = jnp.linalg.solve(matrix, columns)
    else:
        found = transposed(jnp.linalg.solve(transposed(matrix), transposed(columns)))
    return (found[..., 0] if vector else found, *lu_with_info(A))


def _triangular(
    a: jax.Array, b: jax.Array, *, upper: bool, left: bool, unit: bool, transpose: bool = False
) -> jax.Array:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return lax.linalg.triangular_solve(
        jnp.broadcast_to(a, (*batch, *a.shape[-2:])),
        jnp.broadcast_to(b, (*batch, *b.shape[-2:])),
        left_side=left,
        lower=not upper,
        transpose_a=transpose,
        unit_diagonal=unit,
    )


@lowers("linalg_solve_triangular")
def solve_triangular(
    call: Call,
    self: jax.Array,
    B: jax.Array,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> jax.Array:
    return _triangular(self, B, upper=upper, left=left, unit=unitriangular)


@lowers("triangular_solve")
def triangular_solve(
    call: Call,
    self: jax.Array,
    A: jax.Array,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[jax.Array, jax.Array]:
    found = _triangular(A, self, upper=upper, left=True, unit=unitriangular, transpose=transpose)
    return found, jnp.broadcast_to(A, (*found.shape[:-2], *A.shape[-2:]))


@lowers("cholesky_solve")
def cholesky_solve(
    call: Call, self: jax.Array, input2: jax.Array, upper: bool = False
) -> jax.Array:
    lower = adjoint_of(input2) if upper else input2
    half = _triangular(lower, self, upper=False, left=True, unit=False)
    return _triangular(adjoint_of(lower), half, upper=True, left=True, unit=False)


@lowers("cholesky_inverse")
def cholesky_inverse(call: Call, self: jax.Array, upper: bool = False) -> jax.Array:
    one = jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape)
    return cholesky_solve(call, one, self, upper)


@lowers("linalg_matrix_exp")
def matrix_exp(call: Call, self: jax.Array) -> jax.Array:
    from jax.scipy.linalg import expm

    return jnp.asarray(expm(wide(self))) if self.size else self


@lowers("linalg_cross")
def cross(call: Call, self: jax.Array, other: jax.Array, *, dim: int = -1) -> jax.Array:
    x, y = jnp.broadcast_arrays(self, other)
    return jnp.cross(x, y, axis=dim)


@lowers("_cdist_forward", static_numbers=True)
def cdist(
    call: Call, x1: jax.Array, x2: jax.Array, p: float, compute_mode: int | None
) -> jax.Array:
    return _distance(x1[..., :, None, :] - x2[..., None, :, :], p)


def _distance(gap: jax.Array, p: float) -> jax.Array:
    """The p-norm over the last dim; 0 over none."""
    gap = jnp.abs(gap)
    if p == 0:
        return jnp.sum(gap != 0, axis=-1).astype(gap.dtype)
    if p == float("inf"):
        return jnp.max(gap, axis=-1, initial=0)
    if p == 2:
        return jnp.sqrt(jnp.sum(gap * gap, axis=-1))
    return jnp.sum(gap**p, axis=-1) ** (1 / p)


@lowers("linalg_lu_solve")
def lu_solve(
    call: Call,
    LU: jax.Array,
    pivots: jax.Array,
    B: jax.Array,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> jax.Array:
    if not left:
        return adjoint_of(lu_solve(call, LU, pivots, adjoint_of(B), left=True, adjoint=not adjoint))
    batch = jnp.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    B = jnp.broadcast_to(B, (*batch, *B.shape[-2:]))
    order = lax.linalg.lu_pivots_to_permutation(pivots - 1, LU.shape[-1])
    order = jnp.broadcast_to(order, (*batch, LU.shape[-1]))
    if adjoint:
        turned = adjoint_of(LU)
        half = _triangular(turned, B, upper=False, left=True, unit=False)
        found = _triangular(turned, half, upper=True, left=True, unit=True)
        return jnp.take_along_axis(found, jnp.argsort(order, axis=-1)[..., None], axis=-2)
    rows = jnp.take_along_axis(B, order[..., None], axis=-2)
    half = _triangular(LU, rows, upper=False, left=True, unit=True)
    return _triangular(LU, half, upper=True, left=True, unit=False)


@lowers("_cdist_backward", static_numbers=True)
def cdist_backward(
    call: Call, grad: jax.Array, x1: jax.Array, x2: jax.Array, p: float, cdist: jax.Array
) -> jax.Array:
    if 0 in (*x1.shape, *x2.shape):
        return jnp.zeros(call.shape, x1.dtype)
    slope = _distance_slope(x1[..., :, None, :] - x2[..., None, :, :], p, cdist[..., None])
    return jnp.sum(slope * grad[..., None], axis=-2)


def _distance_slope(gap: jax.Array, p: float, far: jax.Array) -> jax.Array:
    """The derivative of the p-norm by the gap; 0 where it has none."""
    if p == 0:
        return jnp.zeros_like(gap)
    if p == float("inf"):
        return jnp.where(jnp.abs(gap) == far, jnp.sign(gap), 0)
    safe = jnp.where(far == 0, 1, far)
    size = jnp.where(gap == 0, 1, jnp.abs(gap))
    return jnp.where((far == 0) | (gap == 0), 0, jnp.sign(gap) * (size / safe) ** (p - 1))


@lowers("_pdist_forward", static_numbers=True)
def pdist(call: Call, self: jax.Array, p: float = 2.0) -> jax.Array:
    first, second = np.triu_indices(self.shape[0], 1)
    return _distance(self[first] - self[second], p)


@lowers("_pdist_backward", static_numbers=True)
def pdist_backward(
    call: Call, grad: jax.Array, self: jax.Array, p: float, pdist: jax.Array
) -> jax.Array:
    first, second = np.triu_indices(self.shape[0], 1)
    slope = _distance_slope(self[first] - self[second], p, pdist[:, None]) * grad[:, None]
    return jnp.zeros_like(self).at[first].add(slope).at[second].add(-slope)


@lowers("linalg_lstsq", static_numbers=True)
def least_squares(
    call: Call,
    self: jax.Array,
    b: jax.Array,
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> tuple[jax.Array, ...]:
    """The solution of least norm, by singular values whatever the driver."""
    vector = is_vector(self, b)
    sides = b[..., None] if vector else b
    rows, columns = self.shape[-2:]
    u, values, vh = jnp.linalg.svd(self, full_matrices=False)
    if rcond is None:
        rcond = float(limits(self.dtype).eps) * max(rows, columns)
    largest = jnp.max(values, axis=-1, keepdims=True, initial=0)
    kept = values > (0.0 if driver == "gels" else rcond) * largest
    scaled = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)[..., None]
    solution = adjoint_of(vh) @ (scaled * (adjoint_of(u) @ sides))
    nothing = jnp.zeros((0,), values.dtype)
    wanted = [meta.shape != (0,) for meta in call.out]
    apart = jnp.sum(jnp.abs(self @ solution - sides) ** 2, axis=-2)
    return (
        solution[..., 0] if vector else solution,
        apart if wanted[1] else nothing,
        jnp.sum(kept, axis=-1) if wanted[2] or driver != "gels" else nothing,
        values if wanted[3] else nothing,
    )
