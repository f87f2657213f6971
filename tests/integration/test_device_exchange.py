"""Memory of device "tpu" handed to and from JAX, NumPy and torch's CPU, by DLPack or directly."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.runtime.modes import EagerMode

dlpack: Any = torch.utils.dlpack
tpu = torch.tpu  # type: ignore[attr-defined]


def _address(array: Any) -> int:
    return int(array.unsafe_buffer_pointer())


def test_jax_takes_and_gives_arrays_without_a_copy(mode: EagerMode) -> None:
    x = torch.arange(6.0, device="tpu").view(2, 3) + 1
    array = tpu.to_jax(x)
    again = tpu.from_jax(array)
    assert tpu.to_jax(again) is array
    x.add_(1)
    again.mul_(3)
    assert array.tolist() == [[1, 2, 3], [4, 5, 6]]  # as it was: writes go elsewhere
    assert x.tolist() == [[2, 3, 4], [5, 6, 7]]
    assert again[1].tolist() == [12, 15, 18]
    assert tpu.to_jax(x.t()[1:]).tolist() == [[3, 6], [4, 7]]
    doubled = tpu.from_jax(jax.jit(lambda v: v * 2)(tpu.to_jax(x)))
    assert (doubled + x)[0].tolist() == [6, 9, 12]
    assert tpu.from_jax(jnp.float32(3)).shape == ()


def test_dlpack_shares_memory_with_torch_and_numpy(mode: EagerMode) -> None:
    x = torch.arange(1000.0, device="tpu") * 2
    on_cpu, in_numpy = torch.from_dlpack(x), np.from_dlpack(x)  # type: ignore[attr-defined]
    address = _address(tpu.to_jax(x))
    assert on_cpu.data_ptr() == in_numpy.__array_interface__["data"][0] == address
    assert on_cpu.device.type == "cpu"
    assert (
        jnp.from_dlpack(x)[:3].tolist()
        == dlpack.from_dlpack(dlpack.to_dlpack(x))[:3].tolist()
        == [0, 2, 4]
    )
    assert dlpack.from_dlpack(x.view(10, 100).t())[1, :3].tolist() == [2, 202, 402]

    host = torch.arange(1000.0)
    back = dlpack.from_dlpack(host, device="tpu")
    if host.data_ptr() % 64 == 0:
        assert _address(tpu.to_jax(back)) == host.data_ptr()
    back.add_(1)
    assert host[:2].tolist() == [0, 1]
    assert back[:2].tolist() == [1, 2]
    copied = dlpack.from_dlpack(host, device="tpu", copy=True)
    host[0] = 7
    assert copied[0].item() == 0
    assert dlpack.from_dlpack(dlpack.from_dlpack(jnp.arange(3), device="tpu")).tolist() == [0, 1, 2]


def test_writing_through_dlpack_reaches_no_other_tensor() -> None:
    x = torch.empty(3, device="tpu")
    dlpack.from_dlpack(x).fill_(5)
    assert x.tolist() == [5, 5, 5]
    assert torch.empty(3, device="tpu").tolist() == [0, 0, 0]


def test_every_common_dtype_passes_both_ways() -> None:
    for dtype in (torch.bool, torch.bfloat16, torch.float16, torch.int64, torch.complex64):
        host = torch.arange(3).to(dtype)
        device = dlpack.from_dlpack(host, device="tpu")
        assert device.dtype == dtype
        assert torch.equal(device.cpu(), host)
        assert torch.equal(dlpack.from_dlpack(device), host)


def test_what_cannot_pass_says_why() -> None:
    with pytest.raises(BufferError, match="require gradient"):
        dlpack.from_dlpack(torch.ones(2, device="tpu", requires_grad=True))
    with pytest.raises(TypeError, match=r"not cpu; move it with \.to\('tpu'\)"):
        tpu.to_jax(torch.ones(2))
    with pytest.raises(TypeError, match="JAX's key<fry>"):
        tpu.from_jax(jax.random.key(0))
    with pytest.raises(TypeError, match="JAX traces"):
        jax.jit(tpu.from_jax)(jnp.ones(2))
