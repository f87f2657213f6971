"""Device tensors held against torch on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch


def same_on_device(device: torch.Tensor, host: torch.Tensor) -> None:
    """Assert that a device tensor has the CPU tensor's geometry and values."""
    assert device.device.type == "tpu"
    assert device.stride() == host.stride()
    torch.testing.assert_close(device.cpu(), host, rtol=1e-5, atol=1e-6)


def same_derivatives(function: Callable[..., torch.Tensor], *hosts: torch.Tensor) -> None:
    """Assert that a function gives on the device the CPU's values, strides, gradients and second
    derivatives."""
    on_host = _derivatives(function, [h.clone().requires_grad_() for h in hosts])
    on_device = _derivatives(function, [h.to("tpu").requires_grad_() for h in hosts])
    for ours, theirs in zip(on_device, on_host, strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)


def _derivatives(
    function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]
) -> list[torch.Tensor]:
    y = function(*inputs)
    first = torch.autograd.grad((y * y.conj()).real.sum(), inputs, create_graph=True)
    power = torch.stack([(g * g.conj()).real.sum() for g in first]).sum()
    return [y, *first, *torch.autograd.grad(power, inputs)]
