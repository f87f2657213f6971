"""torch.compile(backend="tpu") on what users write, against the same code on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _both(use: Callable[[str, Callable[..., Any]], Any]) -> None:
    """Assert that a use of compiled functions on the device gives what plain ones give on the
    CPU: `use` gets a device and what to compile a function with."""
    torch.manual_seed(0)
    theirs = torch.utils._pytree.tree_leaves(use("cpu", lambda f, **_: f))
    torch.manual_seed(0)
    compiled = use("tpu", lambda f, **k: torch.compile(f, backend="tpu", **k))
    ours = torch.utils._pytree.tree_leaves(compiled)
    assert len(ours) == len(theirs)
    for mine, wanted in zip(ours, theirs, strict=True):
        if not isinstance(wanted, torch.Tensor):
            assert mine == wanted
            continue
        assert mine.stride() == wanted.stride()
        torch.testing.assert_close(mine.detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)


def _x(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape or (3, 4), generator=torch.Generator().manual_seed(7)).to(device)


def test_graph_breaks_branches_on_values_and_item() -> None:
    def use(device: str, compiler: Callable[..., Any]) -> Any:
        def f(x: torch.Tensor) -> Any:
            y = x.sin()
            torch._dynamo.graph_break()
            if y.sum() > 0:
                return y + 1, y.sum().item()
            return y - 1, y.sum().item()

        g = compiler(f)
        with torch.no_grad():
            return [g(_x(device)), g(-_x(device))]

    torch.manual_seed(0)
    theirs, ours = use("cpu", lambda f: f), use("tpu", lambda f: torch.compile(f, backend="tpu"))
    for (mine, number), (wanted, expected) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.cpu(), wanted)
        assert number == pytest.approx(expected)


def test_inputs_written_in_place_views_returned_and_strides() -> None:
    def use(device: str, compiler: Callable[..., Any]) -> Any:
        def f(x: torch.Tensor, y: torch.Tensor) -> Any:
            x.add_(1)
            y[1:].t().mul_(2)
            return x.view(-1), y.t(), x.t() + 1, x

        x, y = _x(device), _x(device, 4, 3)
        flat, turned, laid_out, same = compiler(f)(x, y)
        assert same is x
        x.mul_(3)  # seen through the view
        return x, y, flat, turned, laid_out

    _both(use)


def test_modules_with_buffers_train() -> None:
    def use(device: str, compiler: Callable[..., Any]) -> Any:
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
                              nn.Linear(12, 2)).to(device)  # fmt: skip
        step = compiler(model)
        for _ in range(2):
            step(_x(device, 4, 2, 4, 4)).pow(2).sum().backward()
        return list(model.state_dict().values()), [p.grad for p in model.parameters()]

    _both(use)


def test_recurrent_modules_that_dynamo_leaves_to_eager() -> None:
    def use(device: str, compiler: Callable[..., Any]) -> Any:
        model = nn.LSTM(3, 4, 2).to(device)
        out, _ = compiler(model)(_x(device, 5, 2, 3))
        out.sum().backward()
        return out, [p.grad for p in model.parameters()]

    torch._dynamo.utils.clear_compilation_metrics()
    _both(use)
    # Dynamo sees the module's frames, not the functions of the device's own kernels or of JAX.
    seen = {m.co_filename or "" for m in torch._dynamo.utils.get_compilation_metrics()}
    assert not [f for f in seen if not f.startswith(torch.__path__[0])]


OPTIMIZERS: list[Callable[[Any, str], torch.optim.Optimizer]] = [
    lambda p, device: torch.optim.AdamW(
        p, lr=torch.tensor(0.01, device=device), capturable=device != "cpu"
    ),
    lambda p, device: torch.optim.AdamW(p, lr=0.01, fused=True),
    lambda p, device: torch.optim.SGD(p, lr=0.1, momentum=0.9),
]


@pytest.mark.parametrize("make", OPTIMIZERS, ids=["adamw_capturable", "adamw_fused", "sgd"])
def test_compiled_optimizer_steps(make: Callable[[Any, str], torch.optim.Optimizer]) -> None:
    def use(device: str, compiler: Callable[..., Any]) -> Any:
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).to(device)
        optimizer = make(model.parameters(), device)
        step = compiler(lambda: optimizer.step())
        for _ in range(3):
            optimizer.zero_grad()
            model(_x(device)).pow(2).sum().backward()
            step()
        return list(model.parameters())

    _both(use)


def test_dynamic_shapes_are_traced_once_and_run_as_static_programs() -> None:
    def use(device: str, compiler: Callable[..., Any]) -> Any:
        traced = []

        def f(x: torch.Tensor) -> Any:
            traced.append(1)  # Dynamo runs this when it traces, not when the graph runs
            n = x.shape[0]
            padded = functional.pad(x, (0, n))
            return padded.mean(0) / n, torch.arange(n, device=x.device), x[: n // 2], n * 2

        g = compiler(f, dynamic=True)
        return [g(_x(device, n, 3)) for n in (4, 5, 7)]

    _both(use)
    counts = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counts.clear()
    dynamic = torch.compile(lambda x: x.sin() + x.shape[0], backend="tpu", dynamic=True)
    for n in (3, 4, 6):
        dynamic(_x("tpu", n, 2))
    assert counts["stats"]["unique_graphs"] == 1
    counts.clear()
    static = torch.compile(lambda x: x.cos() + x.shape[0], backend="tpu")
    for n in (3, 4, 6):
        static(_x("tpu", n, 2))
    assert counts["stats"]["unique_graphs"] == 3


def test_mark_dynamic_and_training_with_symbolic_shapes() -> None:
    def use(device: str, compiler: Callable[..., Any]) -> Any:
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(device)
        step = compiler(model)
        made = []
        for n in (3, 4, 6):
            x = _x(device, n, 3)
            torch._dynamo.mark_dynamic(x, 0)
            made.append(step(x))
            made[-1].sum().backward()
        return made, [p.grad for p in model.parameters()]

    _both(use)


def test_control_flow_as_part_of_the_graph() -> None:
    def use(device: str, compiler: Callable[..., Any]) -> Any:
        choose = compiler(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
                          fullgraph=True)  # fmt: skip

        def repeat(x: torch.Tensor) -> Any:
            return torch._higher_order_ops.while_loop(
                lambda i, x: i < 3, lambda i, x: (i + 1, x * 2),
                (torch.tensor(0, device=x.device), x),
            )  # fmt: skip

        return choose(_x(device)), choose(-_x(device)), compiler(repeat, fullgraph=True)(_x(device))

    _both(use)


def test_results_stay_on_the_device_that_torch_says() -> None:
    def f(x: torch.Tensor) -> Any:
        return x * 2, torch.arange(3) + 1, (x * 3).cpu()

    x = _x("tpu")
    here, counted, brought = torch.compile(f, backend="tpu")(x)
    assert (here.device.type, counted.device.type, brought.device.type) == ("tpu", "cpu", "cpu")
    assert counted.tolist() == [1, 2, 3]
    torch.testing.assert_close(brought, x.cpu() * 3)


def test_dropout_draws_what_eager_draws() -> None:
    layer, x = nn.Dropout(0.5), torch.ones(64, device="tpu")
    compiled = torch.compile(layer, backend="tpu")
    torch.manual_seed(1)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(1)
    assert torch.equal(compiled(x), first)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)


def test_checkpoints_and_transforms_inside() -> None:
    def use(device: str, compiler: Callable[..., Any]) -> Any:
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)).to(device)
        x = _x(device).requires_grad_()
        y = compiler(lambda x: checkpoint(model, x, use_reentrant=False) + x)(x)
        y.sum().backward()
        functional_part = compiler(lambda x: (
            torch.func.vmap(lambda a: a.sin().sum())(x), torch.func.grad(lambda x: (x**3).sum())(x)
        ))(x.detach())  # fmt: skip
        return y, x.grad, [p.grad for p in model.parameters()], functional_part

    _both(use)


def test_a_second_derivative_is_torchs_own_refusal() -> None:
    x = _x("tpu").requires_grad_()
    y = torch.compile(lambda x: (x**3).sum(), backend="tpu")(x)
    (grad,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        grad.sum().backward()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torchs_other_backends_run_on_the_device(backend: str) -> None:
    x = _x("tpu").requires_grad_()
    y = torch.compile(lambda x: (x.sin() @ x.t()).relu(), backend=backend)(x)
    y.sum().backward()
    host = _x("cpu").requires_grad_()
    wanted = (host.sin() @ host.t()).relu()
    wanted.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(y.cpu(), wanted)
    torch.testing.assert_close(x.grad.cpu(), host.grad)
