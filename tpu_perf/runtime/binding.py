"""From the arguments of one call to its key, buffers and numbers: the per-op work of the host."""

from __future__ import annotations

from typing import Any

import torch

from tpu_perf.runtime.buffers import Buffer, Spec, buffer_of
from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.jax_private import put
from tpu_perf.runtime.random_numbers import GENERATOR, draws_of
from tpu_perf.runtime.signatures import (
    IGNORED,
    NUMBER,
    NUMBERS,
    STATIC,
    TENSOR,
    TENSORS,
    Signature,
    is_default,
)
from tpu_perf.runtime.torch_private import storage_of

Tensor = torch.Tensor
_NUMBERS = (int, float, bool, complex)


class Bound:
    """One call's arguments, sorted: `values` in schema order, tensors with their slots."""

    __slots__ = ("buffers", "draws", "key", "numbers", "slot_of", "tensors", "values")

    def __init__(self) -> None:
        self.key: Any = None
        self.values: list[Any] = []
        self.tensors: list[Tensor] = []
        self.slot_of: list[int] = []
        self.buffers: list[Buffer] = []
        self.numbers: list[Any] = []
        self.draws = GENERATOR


def bind(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
    """Sort the arguments of a call.

    Raises RuntimeError for tensors on another device, other than 0-dim CPU tensors, which
    PyTorch lets take part as numbers that have a dtype.
    """
    bound = Bound()
    key: list[Any] = []
    count = len(args)
    merge: dict[int, int] | None = {} if signature.mutable else None
    for i, argument in enumerate(signature.arguments):
        if i < count and not argument.keyword_only:
            value = args[i]
        else:
            value = kwargs.get(argument.name, argument.default)
        kind = argument.kind
        bound.values.append(value)
        if kind == TENSOR:
            _bind_tensor(bound, key, value, merge, signature)
        elif kind == TENSORS:
            if value is None:
                key.append(None)
                continue
            key.append(len(value))
            _bind_tensors(bound, key, value, merge, signature)
        elif kind == NUMBER:
            _bind_number(bound, key, value, argument.default)
        elif kind == NUMBERS:
            key.append(len(value))
            for item in value:
                key.append(type(item))
                bound.numbers.append(item)
        elif kind == STATIC:
            key.append(static_key(value))
        else:
            assert kind == IGNORED
            if value is not None and argument.name == "generator":
                bound.draws = draws_of(value)
    if merge is not None:
        key.append(tuple(bound.slot_of))
    bound.key = tuple(key)
    return bound


def _bind_number(bound: Bound, key: list[Any], value: Any, default: Any) -> None:
    if is_default(value, default):
        key.append(value)
        return
    if value.__class__ not in _NUMBERS:
        value = _plain(value)
    key.append(type(value))
    bound.numbers.append(value)


def _plain(value: Any) -> Any:
    """A SymInt, numpy number or the like as a Python number."""
    kinds: tuple[Any, ...] = (bool, int, float, complex)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value)
    return value.item() if hasattr(value, "item") else float(value)


def _bind_tensor(
    bound: Bound, key: list[Any], value: Any, merge: dict[int, int] | None, signature: Signature
) -> None:
    if isinstance(value, Tensor):
        if value.device.type != "tpu":
            buffer = _host_scalar(value, signature)
            key.append("host")
        else:
            buffer = buffer_of(value)
        spec = buffer.spec
        key += (value.shape, value.stride(), value.storage_offset(), spec)
        if spec.reinterpreted or value.dtype is not spec.dtype:
            key.append(value.dtype)
        if spec.may_be_turned:
            key += (value.is_conj(), value.is_neg())
        bound.tensors.append(value)
        if merge is None:
            bound.slot_of.append(len(bound.buffers))
            bound.buffers.append(buffer)
        else:
            slot = merge.setdefault(id(buffer), len(bound.buffers))
            if slot == len(bound.buffers):
                bound.buffers.append(buffer)
            bound.slot_of.append(slot)
    elif value is None:
        key.append(None)
    else:
        value = value if value.__class__ in _NUMBERS else _plain(value)
        key.append(type(value))
        bound.numbers.append(value)


def _bind_tensors(
    bound: Bound, key: list[Any], values: Any, merge: dict[int, int] | None, signature: Signature
) -> None:
    """`_bind_tensor` for a list, which for an optimizer's holds every parameter: the common case
    written out."""
    buffers, slot_of, tensors = bound.buffers, bound.slot_of, bound.tensors
    for value in values:
        try:
            buffer = storage_of(value)._buffer  # type: ignore[attr-defined]
            spec = buffer.spec
        except (AttributeError, TypeError):
            _bind_tensor(bound, key, value, merge, signature)
            continue
        if spec.may_be_turned:
            _bind_tensor(bound, key, value, merge, signature)
            continue
        key += (value.shape, value.stride(), value.storage_offset(), spec)
        tensors.append(value)
        slot = new = len(buffers)
        if merge is not None:
            slot = merge.setdefault(id(buffer), new)
        if slot == new:
            buffers.append(buffer)
        slot_of.append(slot)


def _host_scalar(value: Tensor, signature: Signature) -> Buffer:
    if value.dim() != 0:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {signature.display} got at least "
            f"one of shape {list(value.shape)} on {value.device} beside others on tpu:0; move it "
            "with .to('tpu')"
        )
    return Buffer(
        put(value.detach().resolve_conj().numpy().copy())
        if value.dtype is not torch.bfloat16
        else put(value.detach().float().numpy().astype(numpy_dtype(torch.bfloat16))),
        Spec.of((), value.dtype),
    )


def static_key(value: Any) -> Any:
    """A hashable stand-in that keeps apart what Python's equality does not (1, 1.0, True)."""
    cls = value.__class__
    if cls is list or cls is tuple or cls is torch.Size:
        return tuple([static_key(v) for v in value])
    if cls is bool or cls is float or cls is complex:
        return (cls, value)
    return value
