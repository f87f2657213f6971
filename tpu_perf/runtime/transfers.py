"""Copies between host and device, and waiting for the device."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
import torch

from tpu_perf.recorder import active
from tpu_perf.runtime import jax_private
from tpu_perf.runtime.buffers import buffer_of
from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.failures import found_at_fence
from tpu_perf.runtime.forking import refuse_in_child
from tpu_perf.runtime.modes import STATE
from tpu_perf.runtime.moving_views import can_be_read_at, read_at
from tpu_perf.runtime.outstanding import OUTSTANDING
from tpu_perf.runtime.program_cache import CACHE
from tpu_perf.runtime.views import view_of

_clock = time.perf_counter_ns

#: torch dtypes that numpy lacks, and an integer type of the same width to carry their bits.
_CARRIERS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}


def to_host_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A CPU tensor as a numpy array of the JAX dtype, in memory of its own."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    carrier = _CARRIERS.get(tensor.dtype)
    if carrier is not None:
        bits: np.ndarray[Any, Any] = tensor.contiguous().view(carrier).numpy().copy()
        return bits.view(numpy_dtype(tensor.dtype))
    return np.array(tensor.numpy(), order="C", copy=True)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def to_device(tensor: torch.Tensor) -> jax.Array:
    """Copy a CPU tensor's values to a new device array of its shape."""
    recorder = active.recorder
    start = _clock() if recorder is not None else 0
    host = to_host_array(tensor)
    array = jax_private.put(host)
    OUTSTANDING.anything = True
    if recorder is not None:
        recorder.transfer((start, _clock(), "h2d", host.nbytes, recorder.step))
    return array


def to_host(tensor: torch.Tensor, reason: str = ".cpu()") -> torch.Tensor:
    """Copy a device tensor's values to a new contiguous CPU tensor; waits for them."""
    if STATE.capturing:
        from tpu_perf.runtime.whole_step import refuse_read

        refuse_read()
    refuse_in_child()
    buffer = buffer_of(tensor)
    base = buffer.ready(reason)
    view = view_of(tensor, buffer.spec)
    array = base if view.identity else read_view(view, base)
    recorder = active.recorder
    start = _clock() if recorder is not None else 0
    try:
        host = np.asarray(array)
    except jax.errors.JaxRuntimeError as error:
        raise found_at_fence(error) from error
    if recorder is not None:
        recorder.transfer((start, _clock(), "d2h", host.nbytes, recorder.step))
    return from_host_array(host, tensor.dtype, tuple(tensor.shape))


def read_view(view: Any, base: jax.Array) -> jax.Array:
    """Materialise a view as an array of its own, by a program."""
    if can_be_read_at(view):
        return read_at(view, base)
    program = CACHE.build(
        name="read_view",
        kind="transfer",
        ops=1,
        key_text=f"read_view({view.text})",
        compute=lambda x: (view.read(x),),
        in_avals=[(view.spec.shape, numpy_dtype(view.spec.dtype))],
    )
    return program.run(base)[0]


def from_host_array(
    host: np.ndarray[Any, Any], dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    carrier = _CARRIERS.get(dtype)
    host = np.array(host, copy=True, order="C")
    if carrier is not None:
        carried = torch.from_numpy(host.view(np.dtype(str(carrier).removeprefix("torch."))))
        return carried.view(dtype).reshape(shape)
    return torch.from_numpy(host).reshape(shape)


def synchronize(reason: str = "synchronize()") -> None:
    """Run what is deferred on every thread, then wait until the device has nothing left to do."""
    from tpu_perf.runtime.segment import flush_all

    refuse_in_child()
    flush_all(reason)
    recorder = active.recorder
    start = _clock() if recorder is not None else 0
    OUTSTANDING.wait()
    if recorder is not None:
        recorder.sync((start, _clock(), reason, recorder.step))
