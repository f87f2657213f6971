"""Decides whether a result on the device agrees with torch on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

#: Relative and absolute tolerance against the CPU's result in the same dtype.
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (2e-5, 2e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (2e-3, 2e-3),
    torch.complex64: (2e-5, 2e-5),
    torch.complex128: (1e-7, 1e-7),
}
#: A result outside these is still right when it is about as near to the float64 result as the
#: CPU's is: the CPU rounds too. Measured as the largest error over all elements.
_AS_WRONG_AS_THE_CPU = 4.0

_WIDER = {
    torch.float32: torch.float64, torch.bfloat16: torch.float64, torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}  # fmt: skip

Exact = Callable[[], Any]


class Disagreement(AssertionError):
    """The device's result is not the CPU's."""


class StridesDiffer(Disagreement):
    """Only the strides differ."""


def agree(
    got: Any, want: Any, exact: Exact | None = None, values: bool = True,
    strides_of: Callable[[], Any] | None = None,
) -> None:  # fmt: skip
    """Raise Disagreement unless both have the same structure, shapes, dtypes, strides and values.

    `exact` computes the float64 result; it is asked only where values differ too much. `values`
    is False for results whose contents torch leaves open. `strides_of` computes a result whose
    strides are right too; it is asked only where they differ.
    """
    ours, our_tree = pytree.tree_flatten(got)
    theirs, their_tree = pytree.tree_flatten(want)
    if len(ours) != len(theirs):
        raise Disagreement(f"structure {our_tree} instead of {their_tree}")
    for position, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        where = f"output {position}: " if len(ours) > 1 else ""
        if not isinstance(b, torch.Tensor):
            _same_value(a, b, where)
            continue
        if not isinstance(a, torch.Tensor):
            raise Disagreement(f"{where}{type(a).__name__} instead of a tensor")
        try:
            _same_form(a, b, where)
        except StridesDiffer:
            if strides_of is None:
                raise
            _same_form(a, pytree.tree_leaves(strides_of())[position], where)
        if values:
            _close(a, b, where, exact, position)


def _same_value(a: Any, b: Any, where: str) -> None:
    if isinstance(b, torch.device):
        return
    if type(a) is not type(b):
        raise Disagreement(f"{where}{type(a).__name__} instead of {type(b).__name__}")
    if isinstance(b, (float, complex)):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5, equal_nan=True)
    elif a != b:
        raise Disagreement(f"{where}{a!r} instead of {b!r}")


def _same_form(a: torch.Tensor, b: torch.Tensor, where: str) -> None:
    if a.device.type != "tpu":
        raise Disagreement(f"{where}result is on {a.device}")
    if a.dtype != b.dtype:
        raise Disagreement(f"{where}dtype {a.dtype} instead of {b.dtype}")
    if a.shape != b.shape:
        raise Disagreement(f"{where}shape {list(a.shape)} instead of {list(b.shape)}")
    if b.layout is not torch.strided:
        if a.layout is not b.layout:
            raise Disagreement(f"{where}layout {a.layout} instead of {b.layout}")
        return
    if _significant(a) != _significant(b):
        raise StridesDiffer(
            f"{where}strides {a.stride()} instead of {b.stride()}, shape {list(b.shape)}"
        )


def _significant(tensor: torch.Tensor) -> list[int]:
    """Strides that place elements: not those of dimensions of size 1, none of empty tensors."""
    if tensor.numel() == 0:
        return []
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


def _close(
    a: torch.Tensor, b: torch.Tensor, where: str, exact: Exact | None, position: int
) -> None:
    ours = a.detach().cpu()
    theirs = b.detach()
    if theirs.layout is not torch.strided:
        ours, theirs = ours.to_dense(), theirs.to_dense()
    ours, theirs = ours.resolve_conj().resolve_neg(), theirs.resolve_conj().resolve_neg()
    rtol, atol = TOLERANCES.get(b.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as difference:
        if exact is not None and b.dtype in _WIDER:
            truth = _truth(exact, position)
            if truth is not None and _as_near(ours, theirs, truth):
                return
        text = str(difference).replace("\n\n", "; ").replace("\n", "; ")
        raise Disagreement(f"{where}{text}") from None


def _truth(exact: Exact, position: int) -> torch.Tensor | None:
    try:
        leaves = pytree.tree_leaves(exact())
    except Exception:  # torch has no float64 form of this call
        return None
    found = leaves[position] if position < len(leaves) else None
    return found.detach() if isinstance(found, torch.Tensor) else None


def _as_near(ours: torch.Tensor, theirs: torch.Tensor, truth: torch.Tensor) -> bool:
    if truth.shape != ours.shape or not (truth.is_floating_point() or truth.is_complex()):
        return False
    rtol, atol = TOLERANCES[ours.dtype]
    wide_ours, wide_theirs = ours.to(truth.dtype), theirs.to(truth.dtype)
    finite = torch.isfinite(wide_theirs) & torch.isfinite(truth) & torch.isfinite(wide_ours)
    if not torch.equal(torch.isfinite(wide_ours), torch.isfinite(wide_theirs)):
        # An overflow of the narrow dtype may round to either side of its largest number.
        return False
    if not finite.any():
        return False
    size = truth[finite].abs().max().item()
    our_error = (wide_ours - truth)[finite].abs().max().item()
    their_error = (wide_theirs - truth)[finite].abs().max().item()
    return bool(our_error <= _AS_WRONG_AS_THE_CPU * their_error + atol + rtol * size)


def widened(value: Any) -> Any:
    """A structure with its floating-point CPU tensors, and their dtypes, as float64."""

    def leaf(v: Any) -> Any:
        if isinstance(v, torch.Tensor) and v.dtype in _WIDER:
            return v.detach().to(_WIDER[v.dtype])
        if isinstance(v, torch.dtype):
            return _WIDER.get(v, v)
        return v

    return pytree.tree_map(leaf, value)
