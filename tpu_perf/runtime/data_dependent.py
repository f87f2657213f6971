"""Ops whose output's shape depends on values: its size is read, as torch on CUDA does, and the
output computed by programs of that size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tpu_perf.runtime.argument_checks import check_overlap, check_written
from tpu_perf.runtime.aten_kernels import by_hand_in, table_kernel

Tensor = torch.Tensor
BY_HAND: dict[str, Callable[..., Any]] = {}
by_hand = by_hand_in(BY_HAND)
aten = torch.ops.aten


def _into(out: Tensor, made: Tensor) -> Tensor:
    """A result written into an out= tensor, which takes its shape."""
    if not torch.can_cast(made.dtype, out.dtype):
        raise RuntimeError(
            f"result type {made.dtype} can't be cast to the desired output type {out.dtype}"
        )
    if out.shape != made.shape:
        out.resize_(made.shape)
    return out.copy_(made)


def _same_dtype(name: str, out: Tensor, dtype: torch.dtype) -> None:
    if out.dtype != dtype:
        raise RuntimeError(
            f"{name}: expected the out= tensor to have dtype {dtype}, but got {out.dtype}"
        )


@by_hand("_assert_async", "_assert_async.msg")
def assert_async(self: Tensor, *message: str) -> None:
    """torch's assertion on the device. The value is read at once: no later sync has to be met
    for a wrong one to show, and the error names the line that asserted."""
    host = self.cpu()
    if message:
        aten._assert_async.msg(host, *message)
    else:
        aten._assert_async.default(host)


@by_hand("nonzero")
def nonzero(self: Tensor) -> Tensor:
    count = int(aten.count_nonzero(self).item())
    made: Tensor = aten.nonzero_static(self, size=count)
    # Column by column, as torch stores it.
    return made.t().contiguous().t()


@by_hand("nonzero.out")
def nonzero_out(self: Tensor, *, out: Tensor) -> Tensor:
    _same_dtype("nonzero", out, torch.int64)
    return _into(out, nonzero(self))


@by_hand("index.Tensor")
def index(self: Tensor, indices: Any) -> Tensor:
    made: Tensor = table_kernel("index.Tensor")(self, _positions(indices))
    return made


@by_hand("index.Tensor_out")
def index_out(self: Tensor, indices: Any, *, out: Tensor) -> Tensor:
    return _into(out, index(self, indices))


@by_hand("index_put_")
def index_put_(self: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    table_kernel("index_put_")(self, _masks_or_positions(indices, values), values, accumulate)
    return self


@by_hand("index_put")
def index_put(self: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    where = _masks_or_positions(indices, values)
    made: Tensor = table_kernel("index_put")(self, where, values, accumulate)
    return made


@by_hand("_index_put_impl_")
def index_put_impl_(
    self: Tensor, indices: Any, values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    """What index's gradient is made of."""
    where = _masks_or_positions(indices, values)
    table_kernel("_index_put_impl_")(self, where, values, accumulate, unsafe)
    return self


def _positions(indices: Any) -> list[Tensor | None]:
    """Index tensors with masks replaced by the positions where they are true, whose number
    depends on the data."""
    found: list[Tensor | None] = []
    for item in _indices_here(indices):
        if item is not None and item.dtype in (torch.bool, torch.uint8):
            found += nonzero(item).unbind(1)
        else:
            found.append(item)
    return found


def _indices_here(indices: Any) -> list[Tensor | None]:
    """Index tensors on the device: those on the host are welcome too, as with CUDA."""
    return [i.to("tpu") if i is not None and i.device.type == "cpu" else i for i in indices]


def _masks_or_positions(indices: Any, values: Tensor) -> Any:
    """Writing one value through a mask needs no positions; writing rows does."""
    return _indices_here(indices) if values.numel() == 1 else _positions(indices)


@by_hand("masked_select")
def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    wide, mask = torch.broadcast_tensors(self, mask)
    where = nonzero(mask.reshape(-1)).squeeze(1)
    chosen: Tensor = wide.reshape(-1).index_select(0, where)
    return chosen


@by_hand("masked_select.out")
def masked_select_out(self: Tensor, mask: Tensor, *, out: Tensor) -> Tensor:
    _same_dtype("masked_select", out, self.dtype)
    check_written(out)
    for given in (self, mask):
        if given.untyped_storage()._cdata == out.untyped_storage()._cdata:
            check_overlap(out, given, whole_too=True)
    return _into(out, masked_select(self, mask))


@by_hand("repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    if output_size is None:
        least, total = torch.stack([repeats.min().long(), repeats.sum()]).tolist()
        if least < 0:
            raise RuntimeError("repeats can not be negative")
        output_size = total
    made: Tensor = table_kernel("repeat_interleave.Tensor")(repeats, output_size=output_size)
    return made


@by_hand("bincount")
def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    dtype = torch.int64
    if weights is not None:
        dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    if self.dim() == 1 and self.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=self.device)
    if self.dim() != 1 or self.is_floating_point() or self.is_complex():
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    least, most = torch.stack([self.min().long(), self.max().long()]).tolist()
    if least < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    counts = torch.zeros(max(most + 1, minlength), dtype=dtype, device=self.device)
    given = torch.ones_like(self, dtype=dtype) if weights is None else weights.to(dtype)
    return counts.index_add_(0, self.long(), given)


def _runs(
    changed: Tensor, return_inverse: bool, return_counts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Of runs of equal elements, given where a new one starts: their first places, the run of
    every place, and their lengths (the last two empty unless wanted)."""
    none = torch.empty(0, dtype=torch.int64, device=changed.device)
    starts = nonzero(changed).squeeze(1)
    inverse = changed.long().cumsum(0) - 1 if return_inverse else none
    counts = none
    if return_counts:
        end = torch.full((1,), changed.numel(), dtype=torch.int64, device=changed.device)
        counts = torch.cat([starts[1:], end]) - starts
    return starts, inverse, counts


def _changes(ordered: Tensor) -> Tensor:
    """Where an element (a row, for more dims) differs from the one before it."""
    first = torch.ones(1, dtype=torch.bool, device=ordered.device)
    differs = ordered[1:] != ordered[:-1]
    if differs.dim() > 1:
        differs = differs.flatten(1).any(1)
    return torch.cat([first, differs])


def _unsorted(inverse: Tensor, order: Tensor) -> Tensor:
    """What belongs to sorted places, at the places sorted from."""
    return torch.empty_like(inverse).scatter_(0, order, inverse)


def _empty(*shapes: Any, like: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.empty(s, dtype=torch.int64, device=like.device) for s in shapes)


@by_hand("_unique2")
def unique(
    self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    if self.numel() == 0:
        inverse, counts = _empty(self.shape if return_inverse else 0, 0, like=self)
        return self.new_empty(0), inverse, counts
    ordered, order = self.reshape(-1).sort(stable=True)
    starts, inverse, counts = _runs(_changes(ordered), return_inverse, return_counts)
    if return_inverse:
        inverse = _unsorted(inverse, order).view(self.shape)
    return ordered.index_select(0, starts), inverse, counts


@by_hand("_unique")
def unique_without_counts(
    self: Tensor, sorted: bool = True, return_inverse: bool = False
) -> tuple[Tensor, Tensor]:
    return unique(self, sorted, return_inverse)[:2]


@by_hand("unique_consecutive")
def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if dim is not None:
        return unique_dim_consecutive(self, dim, return_inverse, return_counts)
    if self.numel() == 0:
        inverse, counts = _empty(self.shape if return_inverse else 0, 0, like=self)
        return self.new_empty(0), inverse, counts
    flat = self.reshape(-1)
    starts, inverse, counts = _runs(_changes(flat), return_inverse, return_counts)
    if return_inverse:
        inverse = inverse.view(self.shape)
    return flat.index_select(0, starts), inverse, counts


def _check_unique_dim(self: Tensor, dim: int) -> int:
    dim = torch._prims_common.canonicalize_dim(self.dim(), dim)
    others = [n for i, n in enumerate(self.shape) if i != dim]
    if 0 in others:
        raise RuntimeError(
            "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied"
        )
    return dim


def _rank(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Dense ranks along dim 0 of every column, and the order that sorts each."""
    ordered, order = columns.sort(dim=0, stable=True)
    steps = (ordered[1:] != ordered[:-1]).long().cumsum(0)
    ranks = torch.cat([torch.zeros_like(order[:1]), steps])
    return torch.empty_like(ranks).scatter_(0, order, ranks), order


def _row_order(rows: Tensor) -> Tensor:
    """The order that sorts rows (n, m) lexicographically: ranks of columns, joined two by two."""
    count = rows.shape[0]
    ranks, order = _rank(rows)
    while ranks.shape[1] > 1:
        if ranks.shape[1] % 2:
            ranks = torch.cat([ranks, torch.zeros_like(ranks[:, :1])], 1)
        ranks, order = _rank(ranks[:, 0::2] * count + ranks[:, 1::2])
    return order[:, 0]


@by_hand("unique_dim")
def unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dim = _check_unique_dim(self, dim)
    if self.numel() == 0:
        return (torch.empty_like(self), *_empty(0, 0, like=self))  # type: ignore[return-value]
    rows = self.movedim(dim, 0)
    order = _row_order(rows.reshape(rows.shape[0], -1))
    ordered = rows.index_select(0, order)
    starts, inverse, counts = _runs(_changes(ordered), True, True)
    made = ordered.index_select(0, starts).movedim(0, dim)
    return made, _unsorted(inverse, order), counts


@by_hand("unique_dim_consecutive")
def unique_dim_consecutive(
    self: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    dim = _check_unique_dim(self, dim)
    if self.numel() == 0:
        return (torch.empty_like(self), *_empty(0, 0, like=self))  # type: ignore[return-value]
    rows = self.movedim(dim, 0)
    starts, inverse, counts = _runs(_changes(rows), True, True)
    made = rows.index_select(0, starts).movedim(0, dim)
    return made, inverse, counts
