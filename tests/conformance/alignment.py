"""Singular vectors and eigenvectors made comparable: torch leaves their phase open."""

from __future__ import annotations

from typing import Any

import torch

#: Ops that return (U, S, V), and whether V comes as its adjoint.
_ADJOINT = {"linalg.svd": True, "svd": False}
#: Ops that return eigenvalues and eigenvectors.
_EIGEN = frozenset({"linalg.eig", "linalg.eigh"})


def aligned(op_name: str, got: Any, want: Any) -> Any:
    """The device's result with every pair of singular vectors turned to the CPU's phase, and the
    vectors beyond the last singular value, of which only the space is determined, replaced by the
    CPU's where they span the same space. Results of other ops are returned as they are.

    A vector that is wrong stays wrong: both of a pair are turned by one number of size 1.
    """
    if op_name in _EIGEN and got[1].shape == want[1].shape:
        vectors, wanted = got[1].detach().cpu(), want[1].detach()
        return type(want)([got[0], _like(vectors * _turn(vectors, wanted), got[1])])
    if op_name not in _ADJOINT or len(got) != 3 or any(
        g.shape != w.shape for g, w in zip(got, want, strict=True)
    ):  # fmt: skip
        return got
    adjoint = _ADJOINT[op_name]
    u, s, v = (t.detach().cpu() for t in got)
    want_u, want_v = want[0].detach(), want[2].detach()
    if adjoint:
        v, want_v = v.mH, want_v.mH
    count = s.shape[-1]
    if not u.numel() or not v.numel() or not count:
        return got
    turn = _turn(u[..., :count], want_u[..., :count])
    u, v = _turned(u, want_u, turn, count), _turned(v, want_v, turn, count)
    return type(want)(
        [_like(u, got[0]), got[1], _like(v.mH if adjoint else v, got[2])]
    )  # fmt: skip


def _turn(vectors: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """For each column the number of size 1 that turns it to the phase wanted."""
    turn = torch.sgn((vectors.conj() * wanted).sum(-2, keepdim=True))
    return torch.where(turn == 0, torch.ones_like(turn), turn)


def _turned(
    vectors: torch.Tensor, wanted: torch.Tensor, turn: torch.Tensor, count: int
) -> torch.Tensor:
    paired, beyond = vectors[..., :count] * turn, vectors[..., count:]
    open_space = wanted[..., count:]
    if beyond.shape[-1] and torch.allclose(
        beyond @ beyond.mH, open_space @ open_space.mH, rtol=1e-4, atol=1e-4
    ):
        beyond = open_space
    return torch.cat([paired, beyond], dim=-1)


def _like(value: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(value)
