"""Factorizations of dense matrices, batched over the leading dims.

XLA reports no errors: a factorization that fails shows as NaN in its factors, and the info code
that torch asks for is found from them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings.registry import Call, lowers


def transposed(x: jax.Array) -> jax.Array:
    """The last two axes swapped."""
    return jnp.swapaxes(x, -1, -2)


def adjoint_of(x: jax.Array) -> jax.Array:
    """The conjugate transpose."""
    return jnp.conj(transposed(x))


def _first_zero_pivot(factor: jax.Array) -> jax.Array:
    """LAPACK's info code: the number, from 1, of the first zero on the diagonal; 0 if there is
    none."""
    zero = jnp.diagonal(factor, axis1=-2, axis2=-1) == 0
    if not zero.shape[-1]:
        return jnp.zeros(zero.shape[:-1], jnp.int32)
    return jnp.where(jnp.any(zero, -1), jnp.argmax(zero, -1) + 1, 0).astype(jnp.int32)


@lowers("linalg_cholesky_ex")
def cholesky_ex(
    call: Call, self: jax.Array, *, upper: bool = False, check_errors: bool = False
) -> tuple[jax.Array, jax.Array]:
    given = adjoint_of(self) if upper else self
    lower = jnp.linalg.cholesky(given, symmetrize_input=False)
    bad = jnp.any(jnp.isnan(lower), axis=(-1, -2)).astype(jnp.int32)
    return adjoint_of(lower) if upper else lower, bad


@lowers("cholesky")
def cholesky(call: Call, self: jax.Array, upper: bool = False) -> jax.Array:
    return cholesky_ex(call, self, upper=upper)[0]


@lowers("linalg_inv_ex")
def inverse(call: Call, A: jax.Array, *, check_errors: bool = False) -> tuple[jax.Array, jax.Array]:
    return jnp.linalg.inv(A), lu_with_info(A)[2]


def lu_with_info(A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Packed factors, torch's pivots (which count rows from 1), and the info code."""
    packed, pivots, _ = lax.linalg.lu(A)
    return packed, pivots + 1, _first_zero_pivot(packed)


@lowers("linalg_lu_factor_ex")
def lu_factor(
    call: Call, A: jax.Array, *, pivot: bool = True, check_errors: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    _refuse_unpivoted(pivot)
    return lu_with_info(A)


def _refuse_unpivoted(pivot: bool) -> None:
    if not pivot:
        raise NotImplementedError(
            "LU without pivoting is not implemented on device tpu, as on the CPU; use pivot=True"
        )


@lowers("linalg_lu")
def lu(call: Call, A: jax.Array, *, pivot: bool = True) -> tuple[jax.Array, jax.Array, jax.Array]:
    _refuse_unpivoted(pivot)
    packed, _, order = lax.linalg.lu(A)
    return (_permutation_matrix(order, A.dtype), *_triangles(packed))


def _permutation_matrix(order: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """P of A = P L U, where `order` lists the rows of A that L U has."""
    rows = jnp.arange(order.shape[-1], dtype=order.dtype)
    return (order[..., None, :] == rows[:, None]).astype(dtype)


def _triangles(packed: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows, columns = packed.shape[-2:]
    short = min(rows, columns)
    unit = jnp.eye(rows, short, dtype=packed.dtype)
    return jnp.tril(packed[..., :, :short], -1) + unit, jnp.triu(packed[..., :short, :])


@lowers("lu_unpack")
def lu_unpack(
    call: Call,
    LU_data: jax.Array,
    LU_pivots: jax.Array,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    nothing = jnp.zeros((0,), LU_data.dtype)
    order, lower, upper = nothing, nothing, nothing
    if unpack_pivots:
        rows = lax.linalg.lu_pivots_to_permutation(LU_pivots - 1, LU_data.shape[-2])
        order = _permutation_matrix(rows, LU_data.dtype)
    if unpack_data:
        lower, upper = _triangles(LU_data)
    return order, lower, upper


def lu_for_gradient(call: Call, A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The factors that torch's derivatives expect: of the transpose where the matrix is real and
    contiguous, as LAPACK reads it then."""
    of_transpose = call.contiguous[0] and not jnp.iscomplexobj(A)
    return lu_with_info(transposed(A) if of_transpose else A)


def _odd_swaps(pivots: jax.Array) -> jax.Array:
    swaps = pivots != jnp.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype)
    return jnp.sum(swaps, axis=-1) % 2 == 1


@lowers("_linalg_det")
def determinant(call: Call, A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    packed, pivots, _ = lu_for_gradient(call, A)
    product = jnp.prod(jnp.diagonal(packed, axis1=-2, axis2=-1), axis=-1)
    return jnp.where(_odd_swaps(pivots), -product, product), packed, pivots


@lowers("_linalg_slogdet")
def log_determinant(call: Call, A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    packed, pivots, _ = lu_for_gradient(call, A)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    size = jnp.abs(diagonal)
    turn = jnp.prod(jnp.where(size == 0, 0, diagonal / jnp.where(size == 0, 1, size)), axis=-1)
    sign = jnp.where(_odd_swaps(pivots), -turn, turn)
    return sign, jnp.sum(jnp.log(size), axis=-1), packed, pivots


@lowers("_linalg_eigh")
def eigh(
    call: Call, A: jax.Array, UPLO: str = "L", compute_v: bool = True
) -> tuple[jax.Array, jax.Array]:
    vectors, values = lax.linalg.eigh(A, lower=UPLO == "L", symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros((0,), A.dtype)


def _eig(A: jax.Array, vectors: bool) -> list[jax.Array]:
    if jax.default_backend() != "cpu":
        raise NotImplementedError(
            "eigenvalues of a general matrix have no program on a TPU (XLA has none); move it to "
            "the CPU with .cpu(), or use torch.linalg.eigh if it is symmetric"
        )
    return lax.linalg.eig(A, compute_left_eigenvectors=False, compute_right_eigenvectors=vectors)


@lowers("linalg_eig")
def eig(call: Call, self: jax.Array) -> tuple[jax.Array, jax.Array]:
    values, vectors = _eig(self, vectors=True)
    return values, vectors


@lowers("_linalg_eigvals", "linalg_eigvals")
def eigvals(call: Call, self: jax.Array) -> jax.Array:
    return _eig(self, vectors=False)[0]


@lowers("_linalg_svd")
def svd(
    call: Call,
    A: jax.Array,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> tuple[jax.Array, ...]:
    if not compute_uv:
        empty = jnp.zeros((0,), A.dtype)
        return empty, jnp.linalg.svd(A, compute_uv=False), empty
    u, s, vh = jnp.linalg.svd(A, full_matrices=full_matrices)
    return u, s, vh


@lowers("linalg_qr")
def qr(call: Call, A: jax.Array, mode: str = "reduced") -> tuple[jax.Array, jax.Array]:
    if mode == "r":
        return jnp.zeros((0,), A.dtype), jnp.linalg.qr(A, mode="r")
    q, r = jnp.linalg.qr(A, mode="complete" if mode == "complete" else "reduced")
    return q, r


@lowers("geqrf")
def geqrf(call: Call, self: jax.Array) -> tuple[jax.Array, jax.Array]:
    packed, scales = jnp.linalg.qr(self, mode="raw")
    return transposed(packed), scales


@lowers("linalg_householder_product")
def householder_product(call: Call, input: jax.Array, tau: jax.Array) -> jax.Array:
    return lax.linalg.householder_product(input, tau) if input.size else input


@lowers("ormqr")
def ormqr(
    call: Call,
    self: jax.Array,
    input2: jax.Array,
    input3: jax.Array,
    left: bool = True,
    transpose: bool = False,
) -> jax.Array:
    if not input3.size:
        return input3
    # The whole Q, of as many reflectors as there are rows, the missing ones being the identity.
    rows = self.shape[-2]
    missing = rows - self.shape[-1]
    none = [(0, 0)] * (self.ndim - 2)
    reflectors = self[..., :rows] if missing < 0 else jnp.pad(self, [*none, (0, 0), (0, missing)])
    scales = jnp.pad(input2, [*none, (0, rows - input2.shape[-1])])
    q = lax.linalg.householder_product(reflectors, scales)
    q = adjoint_of(q) if transpose else q
    return q @ input3 if left else input3 @ q
