"""Ops that the device takes whole, and complex numbers, against torch on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tests.integration.comparing import same_derivatives, same_on_device
from tpu_perf.recorder import Recorder, record_into
from tpu_perf.runtime.modes import EagerMode


def test_parts_of_a_complex_result(mode: EagerMode) -> None:
    host = torch.complex(torch.randn(3, 4), torch.randn(3, 4))
    device = host.to("tpu")
    for part in (torch.real, torch.imag, torch.view_as_real):
        same_on_device(part(device * device), part(host * host))
        same_on_device(part(device * device.conj()) + 1, part(host * host.conj()) + 1)
    for use in (torch.clone, torch.imag, lambda x: x.t() @ x, lambda x: x.sum(0)):
        same_on_device(use(device.conj()), use(host.conj()))
    assert device.conj().cpu().equal(host.conj())
    made = device * 2
    made.real.add_(1)
    same_on_device(made, torch.complex(host.real * 2 + 1, host.imag * 2))


@pytest.mark.parametrize("turn", [lambda x: x, torch.conj, lambda x: x.conj().imag])
def test_compiled_graphs_see_conjugate_and_negative_bits(
    turn: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    host = torch.complex(torch.randn(3, 4), torch.randn(3, 4))
    compiled = torch.compile(lambda x: x * 2, backend="tpu")
    torch.testing.assert_close(compiled(turn(host.to("tpu"))).cpu(), turn(host) * 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_and_its_derivatives(mode: EagerMode, dtype: torch.dtype, weighted: bool) -> None:
    inputs = [torch.randn(3, 4, dtype=dtype), torch.randn(4, dtype=dtype)][: 1 + weighted]
    same_derivatives(
        lambda x, weight=None: functional.rms_norm(x, (4,), weight, 1e-5),
        *inputs,
    )


LINEAR = [
    ((2, 3), (4, 3), None), ((2, 3), (4, 3), (4,)), ((5, 2, 3), (4, 3), (4,)), ((3,), (4, 3), None),
    ((5, 2, 3), (3,), None), ((0, 3), (4, 3), (4,)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("shapes", LINEAR, ids=str)
def test_linear_and_its_derivatives(mode: EagerMode, dtype: torch.dtype, shapes: Any) -> None:
    hosts = [torch.randn(s, dtype=dtype) for s in shapes if s is not None]
    same_derivatives(functional.linear, *hosts)


@pytest.mark.parametrize("trained", ["weight", "bias", "neither"])
def test_linear_with_frozen_parts_is_one_op_each_way(trained: str) -> None:
    torch.manual_seed(0)
    host = torch.nn.Linear(3, 4)
    for name, parameter in host.named_parameters():
        parameter.requires_grad_(name == trained)
    device = copy.deepcopy(host).to("tpu")
    x = torch.randn(2, 5, 3)
    inputs = [x.clone().requires_grad_(), x.to("tpu").requires_grad_()]
    host(inputs[0]).square().sum().backward()
    recorder = Recorder()
    with record_into(recorder):
        device(inputs[1]).square().sum().backward()
    ops = recorder.drain()["dispatch"]["op"].to_pylist()
    assert ops.count("aten::linear.default") == ops.count("aten::linear_backward.default") == 1
    assert not any("mm" in op for op in ops)
    pairs = [(inputs[1].grad, inputs[0].grad)]
    pairs += [(d.grad, h.grad) for d, h in zip(device.parameters(), host.parameters(), strict=True)]
    for ours, theirs in pairs:
        if theirs is None or ours is None:
            assert ours is theirs
        else:
            torch.testing.assert_close(ours.cpu(), theirs)
