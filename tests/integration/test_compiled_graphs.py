"""What torch.compile(backend="tpu") does at its edges: ops of one's own, recompiles, refusals."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.recorder import Recorder, record_into
from tpu_perf.runtime import compile_backend
from tpu_perf.runtime.program_cache import CACHE


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="tpu", **options)


@torch.library.custom_op("tpu_perf_tests::scaled_sine", mutates_args=())
def scaled_sine(x: torch.Tensor, scale: float) -> torch.Tensor:
    made = x.sin()
    made.mul_(scale)
    out: torch.Tensor = torch.mul(made, 1.0, out=torch.empty_like(made))
    return out


@scaled_sine.register_fake
def _(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


scaled_sine.register_autograd(
    lambda ctx, grad: (grad * ctx.saved_tensors[0].cos() * ctx.scale, None), setup_context=_keep
)


@torch.library.custom_op("tpu_perf_tests::summed_by_numpy", mutates_args=())
def summed_by_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.cumsum(x.cpu().numpy(), 0)).to(x.device)


@summed_by_numpy.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("tpu_perf_tests::raised", mutates_args=("x",))
def raised(x: torch.Tensor) -> None:
    x.add_(3)


def test_a_custom_op_written_in_torch_is_part_of_the_one_program() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = scaled_sine(x, 2.0) + 1
        return made

    host = torch.arange(6.0).view(3, 2).requires_grad_()
    x = host.detach().to("tpu").requires_grad_()
    programs = len(CACHE.programs)
    made = _compiled(f, fullgraph=True)(x)
    made.backward(torch.ones_like(made))
    wanted = f(host)
    wanted.backward(torch.ones_like(wanted))
    torch.testing.assert_close(made.detach().cpu(), wanted.detach())
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), host.grad)
    names = [p.name for p in CACHE.programs[programs:]]
    assert names.count("compiled_forward") == 1


def test_custom_ops_that_leave_torch_or_write_their_arguments_run_between_programs() -> None:
    def f(x: torch.Tensor) -> Any:
        a = summed_by_numpy(x * 2)
        b = a + 1
        raised(b)
        return summed_by_numpy(b) * 2, a, x

    host = torch.arange(6.0).view(3, 2)
    made = _compiled(f, fullgraph=True)(host.to("tpu"))
    for ours, theirs in zip(made, f(host), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_gradients_whose_shape_depends_on_data_are_left_to_eager() -> None:
    """An op of the backward pass that cannot be traced once ended the process."""

    def f(x: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return x.index_fill(0, index, value)

    def gradients(device: str, function: Callable[..., Any]) -> Any:
        x = torch.zeros(4, 2, device=device, requires_grad=True)
        value = torch.tensor(2.0, device=device, requires_grad=True)
        made = function(x, torch.tensor([0, 2, 0], device=device), value)
        return torch.autograd.grad(made.sum(), (x, value))

    for ours, theirs in zip(
        gradients("tpu", _compiled(f)), gradients("cpu", f), strict=True
    ):  # fmt: skip
        torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("compiled", [False, True])
def test_torchs_assertion_on_the_device_raises_as_on_the_cpu(compiled: bool) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        # Those without a message torch itself leaves out of graphs.
        torch._assert_async((x > 0).all(), "must be positive")
        torch._assert_async(x.sum() > 1, "must not be small")
        return x * 2

    run = torch.compile(doubled, backend="tpu") if compiled else doubled
    x = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(run(x.to("tpu")).cpu(), doubled(x))
    for wrong in (-x, x / 10):
        with pytest.raises(RuntimeError) as expected:
            doubled(wrong)
        with pytest.raises(RuntimeError, match=re.escape(str(expected.value))):
            run(wrong.to("tpu"))


def test_an_error_of_a_traced_backward_pass_arrives_as_what_it_was() -> None:
    from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(3, device="tpu", requires_grad=True)
        value = torch.empty((), device="tpu", requires_grad=True)
        made = x.index_fill(0, torch.zeros(2, dtype=torch.int64, device="tpu"), value)
        with pytest.raises(DynamicOutputShapeException, match="_unique"):
            made.sum().backward()


def test_a_generator_draws_in_compiled_functions_what_it_draws_in_eager() -> None:
    generator = torch.Generator(device="tpu")

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.rand(3, generator=generator, device=x.device) + x.sin().bernoulli(
            generator=generator
        )

    def made_inside(x: torch.Tensor) -> torch.Tensor:
        own = torch.Generator(device="tpu")
        own.manual_seed(4)
        return torch.randn(3, generator=own, device=x.device) * x

    x = torch.rand(3).to("tpu")
    for function in (f, made_inside):
        generator.manual_seed(5)
        wanted = function(x)
        generator.manual_seed(5)
        torch.testing.assert_close(_compiled(function)(x).cpu(), wanted.cpu())


def test_what_is_meant_for_inductor_is_compiled_for_the_device() -> None:
    before = len(CACHE.by_key)
    compile_backend._tell_of_inductor.cache_clear()
    with pytest.warns(UserWarning, match='compiled by backend "tpu"'):
        made = torch.compile(lambda x: (x + 1).exp().sum())(torch.zeros(7, device="tpu"))
    assert made.item() == pytest.approx(7 * math.e)
    built = list(CACHE.by_key.values())[before:]
    assert any(program.kind == "graph" for program in built)


def test_a_graph_that_only_makes_tensors_on_the_device_is_the_devices_too() -> None:
    made = torch.compile(lambda: torch.arange(5, device="tpu") * 2)()
    assert made.device.type == "tpu"
    assert made.tolist() == [0, 2, 4, 6, 8]


def test_expanded_results_keep_their_strides() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.sum(0).expand(4, 3).t(), x.sum(1)[:, None].expand(3, 4)[1:]

    host = torch.arange(9.0).view(3, 3)
    for ours, theirs in zip(_compiled(f)(host.to("tpu")), f(host), strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs)
    x = host.to("tpu").requires_grad_()
    (grad,) = torch.autograd.grad(
        _compiled(lambda x: x.sum(1))(x), x, torch.arange(3.0).to("tpu")
    )  # fmt: skip
    assert grad.stride() == (1, 0)
    torch.testing.assert_close(grad.cpu(), torch.arange(3.0)[:, None].expand(3, 3))


def test_a_slice_that_moves_costs_two_programs_at_most() -> None:
    host = torch.arange(40.0).view(10, 4)
    whole = host.to("tpu")
    sine = _compiled(lambda x: x.sin() * 2)
    sine(whole[:2])
    before = len(CACHE.programs)
    for start in range(1, 8):
        made = sine(whole[start : start + 2])
        torch.testing.assert_close(made.cpu(), host[start : start + 2].sin() * 2)
    assert len(CACHE.programs) == before + 1


def _recompiles() -> dict[str, Any]:
    found: dict[str, Any] = torch.tpu._get_cache_stats()["recompiles"]  # type: ignore[attr-defined]
    return found


def test_recompiles_say_which_input_of_which_graph_changed() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, tokens: torch.Tensor, count: int) -> torch.Tensor:
            made: torch.Tensor = self.layer(tokens) * count
            return made

    model = _compiled(Scaled().to("tpu"))
    before = _recompiles()["count"]
    model(torch.zeros(2, 3, device="tpu"), 2).sum().backward()
    assert _recompiles()["count"] == before
    model(torch.zeros(4, 3, device="tpu"), 2).sum().backward()
    model(torch.zeros(4, 3, device="tpu"), 2)  # known
    model(torch.zeros(4, 3, device="tpu"), 7)
    assert _recompiles()["count"] == before + 2  # a backward graph is not counted by itself
    shape, number = _recompiles()["latest"][-2:]
    assert shape["graph"].startswith("forward at ")
    assert "test_compiled_graphs.py" in shape["graph"]
    assert shape["changes"] == [
        {"input": "tokens", "what": "shape", "before": "[2, 3]", "after": "[4, 3]"}
    ]
    assert (number["changes"], number["reason"]) == ([], "count == 2")
    assert _recompiles()["by_graph"][shape["graph"]] == 2


def test_new_sizes_of_a_dynamic_graph_are_counted_and_recorded() -> None:
    def shifted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 + y.sum()

    run = _compiled(shifted, dynamic=True)
    recorder = Recorder()
    with record_into(recorder):
        for n in (4, 6, 4, 6):
            run(torch.zeros(n, 3, device="tpu"), torch.zeros(5, device="tpu"))
    mine = [r for r in _recompiles()["latest"] if r["graph"].startswith("shifted at ")]
    assert [r["cause"] for r in mine] == ["sizes"]
    wanted = {"input": "x", "what": "shape", "before": "[4, 3]", "after": "[6, 3]"}
    assert wanted in mine[0]["changes"]
    told = recorder.drain()["compile"].column("differed").to_pylist()
    assert any("shifted at" in t and "x: shape [4, 3] -> [6, 3]" in t for t in told)


def test_convolutions_keep_channels_last() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.ConvTranspose2d(6, 4, 2))
    host = nn.Sequential(*layers)
    model = copy.deepcopy(host).to("tpu")
    images = torch.randn(2, 4, 6, 6).contiguous(memory_format=torch.channels_last)

    def trained(run: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
        x.requires_grad_()
        made = run(x)
        (grad,) = torch.autograd.grad(made.square().sum(), x)
        return [made.detach(), grad]

    ours = trained(_compiled(model), images.to("tpu"))
    for mine, wanted in zip(ours, trained(host, images), strict=True):
        assert mine.stride() == wanted.stride()
        assert wanted.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(mine.cpu(), wanted, rtol=1e-4, atol=1e-4)
