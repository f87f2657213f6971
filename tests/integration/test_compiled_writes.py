"""Inputs that a compiled graph writes: optimizers, counters on the host, memory that is shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tpu_perf.runtime import device
from tpu_perf.runtime.program_cache import CACHE

device.load()

Optimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5),
}


def _parameters(on: str) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(s, generator=generator) for s in ((3, 4), (5,), ())]
    return [torch.nn.Parameter(m.to(on)) for m in made]


def _run(make: Optimizer, on: str, backend: str | None) -> tuple[list[Any], Any]:
    parameters = _parameters(on)
    optimizer = make(parameters)
    update: Any = optimizer.step
    if backend:
        update = torch.compile(update, backend=backend)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(on)
        update()
    return [p.detach().cpu() for p in parameters], optimizer.state


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_optimizer_agrees_with_torch_on_the_cpu(name: str) -> None:
    torch._dynamo.reset()
    here, state = _run(OPTIMIZERS[name], "tpu", "tpu")
    there, expected = _run(OPTIMIZERS[name], "cpu", None)
    torch.testing.assert_close(here, there, rtol=2e-5, atol=1e-6)
    for mine, theirs in zip(state.values(), expected.values(), strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(mine[key].cpu(), value, rtol=2e-5, atol=1e-6)
            else:
                assert mine[key] == value


def test_a_compiled_optimizer_is_one_program_a_step() -> None:
    torch._dynamo.reset()
    parameters = _parameters("tpu")
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    update = torch.compile(optimizer.step, backend="tpu")
    for _ in range(2):
        update()
    before = sum(p.executions for p in CACHE.programs)
    update()
    assert sum(p.executions for p in CACHE.programs) - before == 1


def test_who_shares_the_array_keeps_the_old_value() -> None:
    torch._dynamo.reset()

    def double(x: torch.Tensor) -> None:
        x.mul_(2)

    compiled = torch.compile(double, backend="tpu")
    x = torch.arange(4.0).to("tpu")
    for i in range(3):
        kept = x.clone()
        compiled(x)
        assert kept.tolist() == [v * 2**i for v in range(4)]
        assert x.tolist() == [v * 2 ** (i + 1) for v in range(4)]


def test_views_of_one_memory_are_written_in_place() -> None:
    torch._dynamo.reset()

    def write(first: torch.Tensor, turned: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        first.add_(1)
        turned.mul_(3)
        count.add_(1)
        return first + count

    compiled = torch.compile(write, backend="tpu")
    for on in ("cpu", "tpu"):
        base = torch.arange(12.0).reshape(3, 4).to(on)
        other = torch.arange(6.0).reshape(2, 3).to(on)
        count = torch.tensor(5)
        run = compiled if on == "tpu" else write
        result = run(base[1], other.t(), count)
        if on == "cpu":
            expected = base.clone(), other.clone(), result
        assert count.item() == 6
    torch.testing.assert_close(base.cpu(), expected[0])
    torch.testing.assert_close(other.cpu(), expected[1])
    torch.testing.assert_close(result.cpu(), expected[2])


@pytest.mark.parametrize("mode", ["DEFER_AND_FUSE", "DEFER_NEVER_AND_LAUNCH_BLOCKING"])
def test_what_is_deferred_still_reads_the_old_value(mode: str) -> None:
    torch._dynamo.reset()
    tpu: Any = torch.tpu  # type: ignore[attr-defined]

    def increment(x: torch.Tensor) -> None:
        x.add_(1)

    compiled = torch.compile(increment, backend="tpu")
    with tpu.set_eager_mode(tpu.EagerMode[mode]):
        x = torch.zeros(3, device="tpu")
        compiled(x)
        before = x * 10
        compiled(x)
        assert before.tolist() == [10.0] * 3
        assert x.tolist() == [2.0] * 3
