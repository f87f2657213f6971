"""Slices whose place moves from call to call, as `data[i : i + n]` in a loop over batches.

A program has the offsets of the views that it reads built in, which costs nothing at run time; a
view that keeps moving would need a program for every place. From the third place on it is copied
out by a program that takes the offset as an argument, and the op reads the copy.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch

from tpu_perf.runtime.buffers import Buffer, Spec, contiguous_strides, wrap
from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.modes import STATE
from tpu_perf.runtime.program_cache import CACHE, Program
from tpu_perf.runtime.views import ViewPlan, view_of

if TYPE_CHECKING:
    from tpu_perf.runtime.binding import Bound
    from tpu_perf.runtime.signatures import Signature

#: Places of a view that get a program each.
PLACES = 3

#: Op, and of one of its arguments the position, spec, dtype and size -> offsets seen.
_seen: dict[tuple[Any, ...], set[int]] = defaultdict(set)
_programs: dict[tuple[Any, ...], Program] = {}


def held_still(
    signature: Signature, bound: Bound, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments with moving views replaced by copies; None where there are none. Only
    contiguous views are looked at, whose copies have the same strides, and of buffers whose value
    is there and that the op does not write."""
    if STATE.capturing:
        return None
    written = {
        id(bound.buffers[slot])
        for tensor, slot in zip(bound.tensors, bound.slot_of, strict=True)
        if signature.mutable and _is_written(signature, bound, tensor)
    }
    copies: dict[int, torch.Tensor] = {}
    for position, (tensor, slot) in enumerate(zip(bound.tensors, bound.slot_of, strict=True)):
        buffer = bound.buffers[slot]
        if id(buffer) not in written and _moves(signature, position, tensor, buffer):
            copies[id(tensor)] = _copy(tensor, buffer)
    if not copies:
        return None

    def replaced(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return copies.get(id(value), value)
        if isinstance(value, (list, tuple)):
            return [replaced(one) for one in value]
        return value

    return tuple(replaced(v) for v in args), {name: replaced(v) for name, v in kwargs.items()}


def _is_written(signature: Signature, bound: Bound, tensor: torch.Tensor) -> bool:
    for argument, value in zip(signature.arguments, bound.values, strict=True):
        among = value if isinstance(value, (list, tuple)) else (value,)
        if argument.written and any(one is tensor for one in among):
            return True
    return False


def _moves(signature: Signature, position: int, tensor: torch.Tensor, buffer: Buffer) -> bool:
    spec = buffer.spec
    if (
        buffer.array is None or buffer.segment is not None or spec.reinterpreted
        or tensor.numel() == 0 or tensor.numel() >= spec.numel or tensor.dtype != spec.dtype
        or tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous()
    ):  # fmt: skip
        return False
    places = _seen[signature.name, position, spec, tuple(tensor.shape)]
    places.add(int(tensor.storage_offset()))
    return len(places) > PLACES


def _copy(tensor: torch.Tensor, buffer: Buffer) -> torch.Tensor:
    array = read_at(view_of(tensor, buffer.spec), buffer.array)
    return wrap(array, Spec.of(tuple(tensor.shape), tensor.dtype))


def can_be_read_at(view: ViewPlan) -> bool:
    """Whether a view is one stretch of its buffer, which a program can find by its offset."""
    plain = view.dtype == view.spec.dtype and not (view.conjugated or view.negated)
    return plain and 0 not in view.size and view.stride == contiguous_strides(view.size)


def read_at(view: ViewPlan, base: Any) -> jax.Array:
    """A view's value by the program that serves every place of it."""
    key = view.spec, view.size
    program = _programs.get(key)
    if program is None:
        program = _programs[key] = CACHE.build(
            name="read_view_at",
            kind="transfer",
            ops=1,
            key_text=f"read_view_at({view.spec!r}, {view.size})",
            compute=lambda base, offset: (view.read_at(base, offset),),
            in_avals=[
                (view.spec.shape, numpy_dtype(view.dtype)),
                ((), np.dtype(np.int64)),
            ],
        )
    return program.run(base, np.int64(view.offset))[0]


def forget_moving_views() -> None:
    """Drop the programs, as when the cache is cleared."""
    _programs.clear()
    _seen.clear()
