"""torch.autocast("tpu"): the ops of CUDA's lists, and scaling of gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing._internal.autocast_test_lists import AutocastTestLists

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.runtime.modes import EagerMode

LOW = torch.bfloat16
#: Functions of cuDNN, which another device has no use for.
_OF_CUDA_ALONE = {"aten::cudnn_convolution", "aten::cudnn_convolution_transpose"}


def test_the_same_ops_as_cuda_are_cast() -> None:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    cuda = {n for n in names if has_kernel(n, "AutocastCUDA")} - _OF_CUDA_ALONE
    assert {n for n in names if has_kernel(n, "AutocastPrivateUse1")} == cuda


def _narrow(value: Any) -> Any:
    """Torch's examples for CUDA, whose narrow type is float16, in ours."""
    return torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda t: t.to(LOW) if t.dtype == torch.float16 else t, value
    )


@pytest.mark.parametrize(
    ("examples", "namespace", "result"),
    [
        ("torch_fp16", torch, LOW), ("torch_fp32", torch, torch.float32),
        ("nn_fp16", torch._C._nn, LOW), ("nn_fp32", torch._C._nn, torch.float32),
        ("linalg_fp16", vars(torch._C)["_linalg"], LOW), ("methods_fp16", torch.Tensor, LOW),
        ("methods_fp32", torch.Tensor, torch.float32),
        ("torch_need_autocast_promote", torch, torch.float32),
    ],
)  # fmt: skip
def test_results_have_the_dtype_they_have_on_cuda(
    examples: str, namespace: Any, result: torch.dtype
) -> None:
    lists = AutocastTestLists(torch.device("tpu"))
    tried = 0
    for name, args, *options in getattr(lists, examples):
        function = getattr(namespace, name, None)
        if function is None or "cudnn" in name or name == "einsum":
            continue
        with torch.autocast("tpu", dtype=LOW):
            made = function(*_narrow(args), **(options[0] if options else {}))
        floats = [t for t in torch.utils._pytree.tree_leaves(made)
                  if isinstance(t, torch.Tensor) and t.is_floating_point()]  # fmt: skip
        assert {t.dtype for t in floats} == {result}, name
        tried += 1
    assert tried


def test_nesting_leaving_and_what_is_refused(mode: EagerMode) -> None:
    x = torch.randn(3, 3).to("tpu")
    with torch.autocast("tpu", dtype=LOW):
        assert (x @ x).dtype == LOW
        with torch.autocast("tpu", enabled=False):
            assert (x @ x).dtype == torch.float32
        with torch.autocast("tpu", dtype=torch.float16):
            assert (x @ x).dtype == torch.float16
        assert torch.cat([x, x.to(LOW)]).dtype == torch.float32
        assert (x.double() @ x.double()).dtype == torch.float64
        assert torch.einsum("ij,jk->ik", x, x).dtype == LOW
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            functional.binary_cross_entropy(x.sigmoid(), x.sigmoid())
    assert (x @ x).dtype == torch.float32


def test_custom_functions_choose_their_precision(mode: EagerMode) -> None:
    class InFloat32(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")  # type: ignore[untyped-decorator]
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            assert not torch.is_autocast_enabled("tpu")
            (x,) = ctx.saved_tensors
            return grad @ x.t() + x.t() @ grad

    host = torch.randn(3, 3)
    x = host.to("tpu").requires_grad_()
    with torch.autocast("tpu", dtype=LOW):
        apply: Any = InFloat32.apply
        y = apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    wanted = host.clone().requires_grad_()
    (wanted @ wanted).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), wanted.grad)


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_skips_steps_with_infinities(mode: EagerMode, fused: bool) -> None:
    def train(device: str) -> tuple[list[float], list[torch.Tensor]]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
        x = torch.ones(3, 4, device=device)
        scales = []
        for step in range(5):
            optimizer.zero_grad()
            loss = model(x).pow(2).sum() * (float("inf") if step == 1 else 1.0)
            scaler.scale(loss).backward()
            if not fused:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales, [p.detach().cpu() for p in model.parameters()]

    scales, parameters = train("tpu")
    wanted_scales, wanted = train("cpu")
    assert scales == wanted_scales
    for ours, theirs in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
