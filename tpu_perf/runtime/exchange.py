"""Tensors of device "tpu" to and from JAX and, through DLPack, anything else, without a copy where
memory allows it.

A tensor's array is immutable: who receives it sees the tensor as it was. Later writes to the
tensor go to memory of its own.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpu_perf.runtime import jax_private
from tpu_perf.runtime.buffers import Buffer, Spec, buffer_of, wrap
from tpu_perf.runtime.dtypes import TO_TORCH
from tpu_perf.runtime.torch_private import storage_of
from tpu_perf.runtime.transfers import read_view
from tpu_perf.runtime.views import view_of


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """A device tensor's value as a jax.Array, without waiting for it and without a copy (a view
    that is not the whole of its memory is copied on the device).

    Raises TypeError for a tensor of another device.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "tpu":
        where = tensor.device if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(
            f"to_jax takes a tensor on device tpu, not {where}; move it with .to('tpu')"
        )
    buffer = buffer_of(tensor)
    array = buffer.ready("unknown")
    view = view_of(tensor, buffer.spec)
    if not view.identity:
        return read_view(view, array)
    buffer.shared = True
    return array


def from_jax(array: jax.Array) -> torch.Tensor:
    """A device tensor over a jax.Array, without a copy if the array is on this device. Writing to
    the tensor leaves the array as it is.

    Raises TypeError for anything but an array of numbers, ValueError for one over many devices.
    """
    if not isinstance(array, jax.Array):
        raise TypeError(f"from_jax takes a jax.Array, not {type(array).__name__}")
    if isinstance(array, jax.core.Tracer):
        raise TypeError("from_jax was called inside a function that JAX traces; call it outside")
    dtype = None if jnp.issubdtype(array.dtype, jax.dtypes.extended) else TO_TORCH.get(array.dtype)
    if dtype is None:
        raise TypeError(f"torch has no dtype on device tpu for JAX's {array.dtype}")
    if len(array.devices()) != 1:
        raise ValueError(
            f"the array is spread over {len(array.devices())} devices; a tensor is on one: gather "
            "it first, or take one of array.addressable_shards"
        )
    if array.sharding != jax_private.sharding():
        array = jax.device_put(array, jax_private.sharding())
    tensor = wrap(array, Spec.of(tuple(array.shape), dtype))
    _buffer(tensor).shared = True
    return tensor


def _buffer(tensor: torch.Tensor) -> Buffer:
    found: Buffer = storage_of(tensor)._buffer  # type: ignore[attr-defined]
    return found


#: Arrays handed out through DLPack, by id.
_handed_out: weakref.WeakValueDictionary[int, jax.Array] = weakref.WeakValueDictionary()


def exported(tensor: torch.Tensor) -> Any:
    """An array that no other tensor holds: a receiver may write through DLPack."""
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    buffer = buffer_of(tensor)
    array = buffer.ready("unknown")
    if buffer.shared and _handed_out.get(id(array)) is not array:
        buffer.fill(jnp.copy(array))
    array = to_jax(tensor)
    _handed_out[id(array)] = array
    return array


def received(source: Any, copy: bool | None) -> torch.Tensor:
    """A device tensor over what anything that speaks DLPack holds."""
    if isinstance(source, torch.Tensor) and source.device.type == "tpu":
        return source.clone() if copy else source.detach().view_as(source)
    array = source if isinstance(source, jax.Array) else jax.dlpack.from_dlpack(source)
    if copy:  # done when this returns: the source may change then
        array = jax.block_until_ready(jnp.copy(array))
    return from_jax(array)
