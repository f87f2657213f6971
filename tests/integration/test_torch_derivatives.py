"""torch.func, forward mode, custom functions, hooks and checkpoints, against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, gradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.runtime.modes import EagerMode


def _both(use: Callable[[str], Any]) -> None:
    torch.manual_seed(0)
    theirs = torch.utils._pytree.tree_leaves(use("cpu"))
    torch.manual_seed(0)
    ours = torch.utils._pytree.tree_leaves(use("tpu"))
    assert len(ours) == len(theirs)
    for mine, wanted in zip(ours, theirs, strict=True):
        if isinstance(wanted, torch.Tensor):
            assert mine.device.type == "tpu"
            torch.testing.assert_close(mine.detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)
        else:
            assert mine == wanted


def _x(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape or (3, 4), generator=torch.Generator().manual_seed(7)).to(device)


def test_transforms_of_functions(mode: EagerMode) -> None:
    def use(device: str) -> Any:
        x = _x(device)
        out, pull = vjp(lambda x: x @ x.t(), x)[:2]
        return (
            grad(lambda x: (x.sin() * x).sum())(x), out, pull(torch.ones_like(out)),
            jvp(lambda x: (x @ x.t()).softmax(-1), (x,), (x,)),
            jacrev(lambda x: x.cumsum(0))(x[0]), jacfwd(lambda x: x.cumsum(0))(x[0]),
            hessian(lambda x: (x**3).sum())(x[0]), vmap(torch.dot)(x, x),
            vmap(lambda a, b: a @ b, (0, None))(x, x.t()),
        )  # fmt: skip

    _both(use)


def test_gradients_of_each_sample(mode: EagerMode) -> None:
    def use(device: str) -> Any:
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
        model.to(device)
        parameters = {k: v.detach() for k, v in model.named_parameters()}

        def loss(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            made = functional_call(model, parameters, (x[None],))
            return functional.cross_entropy(made, y[None])

        targets = torch.arange(5, device=device) % 3
        return vmap(grad(loss), (None, 0, 0))(parameters, _x(device, 5, 1, 4, 4), targets)

    _both(use)


def test_vmap_draws_the_same_or_different_numbers(mode: EagerMode) -> None:
    x = torch.zeros(5, 3, device="tpu")
    different = vmap(lambda x: x + torch.rand_like(x), randomness="different")(x)
    same = vmap(lambda x: x + torch.rand(3, device="tpu"), randomness="same")(x)
    assert not torch.equal(different[0], different[1])
    assert torch.equal(same[0], same[4])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda x: x + torch.rand_like(x))(x)


def test_forward_mode_through_modules_and_views(mode: EagerMode) -> None:
    def use(device: str) -> Any:
        model = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.LayerNorm(5)).to(device)
        x = _x(device)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            made = model(dual), (dual @ dual.t()).tanh()
            return [forward_ad.unpack_dual(y).tangent for y in made]

    _both(use)

    def attend(x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x)

    x = _x("cpu", 1, 1, 3, 4)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wanted = jvp(attend, (x,), (x,))[1]
    tangent = jvp(attend, (x.to("tpu"),), (x.to("tpu"),))[1]
    torch.testing.assert_close(tangent.cpu(), wanted, rtol=1e-4, atol=1e-5)


class _Exp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return grad_output * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx: Any, tangent: Any) -> Any:
        return tangent * ctx.saved_tensors[0]


class _Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> torch.Tensor:
        return grad_output * 3


exp: Callable[..., Any] = _Exp.apply
tripled_in_place: Callable[..., Any] = _Tripled.apply


def test_custom_functions(mode: EagerMode) -> None:
    def use(device: str) -> Any:
        x = _x(device, 3).requires_grad_()
        (first,) = torch.autograd.grad(exp(x).sum(), x, create_graph=True)
        y = x * 1
        tripled = tripled_in_place(y)
        assert tripled is y
        (once,) = torch.autograd.grad(tripled.square().sum(), x, create_graph=True)
        refused = ""
        try:
            once.sum().backward()
        except RuntimeError as error:
            refused = str(error)
        assert "once_differentiable" in refused
        return (
            first, torch.autograd.grad(first.sum(), x), tripled, once,
            vmap(grad(lambda x: exp(x).sum()))(_x(device)),
            jvp(exp, (x.detach(),), (x.detach(),)),
        )  # fmt: skip

    _both(use)


def test_hooks_of_tensors_modules_and_saved_values(mode: EagerMode) -> None:
    def use(device: str) -> Any:
        seen: list[Any] = []
        model = nn.Linear(3, 2).to(device)

        def _note_input(module: nn.Module, into: Any, out: Any) -> None:
            seen.append(into[0].sum())

        model.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        model.register_full_backward_hook(_note_input)
        x = _x(device, 4, 3).requires_grad_()
        x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
        y = model(x)
        y.retain_grad()
        y.register_hook(lambda g: g * 3)
        y.sum().backward()
        w = _x(device).requires_grad_()
        with torch.autograd.graph.save_on_cpu():
            z = (w @ w.t()).sigmoid()
        z.sum().backward()
        return seen, x.grad, y.grad, w.grad

    _both(use)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_repeat_their_dropout(mode: EagerMode, reentrant: bool) -> None:
    x = torch.ones(100, device="tpu", requires_grad=True)
    y = checkpoint(lambda x: functional.dropout(x * 1, 0.5), x, use_reentrant=reentrant)
    functional.dropout(x, 0.5)  # draws in between, which the repetition must not see
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


def test_numerical_gradients_agree() -> None:
    x = torch.randn(2, 3, dtype=torch.float64).to("tpu").requires_grad_()
    assert gradcheck(lambda x: functional.layer_norm(x, (3,)), (x,), fast_mode=True)
    assert gradcheck(lambda x: x.sin(), (x,), check_forward_ad=True, fast_mode=True)


def test_graphs_kept_anomalies_and_inference_mode(mode: EagerMode) -> None:
    x = _x("tpu", 3).requires_grad_()
    y = (x**3).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 6 * x.detach() ** 2)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
    zero = torch.zeros(2, device="tpu", requires_grad=True)
    with (
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.raises(RuntimeError, match="SqrtBackward0' returned nan"),
    ):
        (zero.sqrt() * 0).sum().backward()
    with torch.inference_mode():
        made = x * 2
    assert made.is_inference()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        (made * x).sum()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.add_(1)
