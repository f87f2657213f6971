"""Whole-step capture: what is replayed, what is recorded again, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.errors import WorkloadError
from tpu_perf.runtime.buffers import buffer_of
from tpu_perf.runtime.program_cache import CACHE
from tpu_perf.runtime.whole_step import WholeStep


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))


def _step_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[torch.Tensor], torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _batches(count: int, rows: int = 6) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(rows, 4, generator=generator) for _ in range(count)]


def _reference(batches: list[torch.Tensor], schedule: bool = False) -> list[float]:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = _step_of(model, optimizer)
    losses = []
    for i, x in enumerate(batches):
        if schedule:
            optimizer.param_groups[0]["lr"] = 0.01 / (i + 1)
        losses.append(float(step(x)))
    return losses


def test_steady_steps_run_one_program_without_python() -> None:
    batches = _batches(8)
    model = _model().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    calls = []
    inner = _step_of(model, optimizer)

    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return inner(x)

    step = WholeStep(counted, (optimizer,))
    losses = []
    for i, x in enumerate(batches):
        before = sum(p.executions for p in CACHE.programs)
        losses.append(step(x.to("tpu")))
        if i >= 3:
            assert sum(p.executions for p in CACHE.programs) == before + 1
    assert len(calls) == 3
    assert step.replays == 5
    # Losses of earlier steps are tensors of their own: later steps do not write over them.
    assert [float(x) for x in losses] == pytest.approx(_reference(batches), rel=1e-4)


def test_state_is_donated() -> None:
    # Larger than what travels in the vector of small state.
    wide = torch.nn.Linear(4, 2048)
    model = torch.nn.Sequential(wide, torch.nn.Linear(2048, 1)).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = WholeStep(_step_of(model, optimizer), (optimizer,))
    for x in _batches(4):
        step(x.to("tpu"))
    weight = buffer_of(wide.weight).ready()
    step(_batches(1)[0].to("tpu"))
    assert weight.is_deleted()


def test_a_learning_rate_schedule_is_followed_without_recompiling() -> None:
    batches = _batches(7)
    model = _model().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = WholeStep(_step_of(model, optimizer), (optimizer,))
    losses, compiled = [], []
    for i, x in enumerate(batches):
        optimizer.param_groups[0]["lr"] = 0.01 / (i + 1)
        losses.append(float(step(x.to("tpu"))))
        compiled.append(CACHE.misses)
    assert losses == pytest.approx(_reference(batches, schedule=True), rel=1e-4)
    assert compiled[-1] == compiled[2]


def test_another_batch_shape_is_recorded_anew() -> None:
    batches = [*_batches(5), *_batches(3, rows=2), *_batches(3)]
    model = _model().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = WholeStep(_step_of(model, optimizer), (optimizer,))
    losses = [float(step(x.to("tpu"))) for x in batches]
    assert losses == pytest.approx(_reference(batches), rel=1e-4)


def test_data_made_inside_the_step_is_not_frozen() -> None:
    model = _model().to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    source = iter(_batches(6))

    def inner() -> torch.Tensor:
        x = next(source).to("tpu")
        total: torch.Tensor = model(x).sum().detach()
        return total

    step = WholeStep(inner, (optimizer,))
    seen = [float(step()) for _ in range(6)]
    host = _model()
    assert seen == pytest.approx([float(host(x).sum().detach()) for x in _batches(6)], rel=1e-4)
    assert step.replays == 0
    assert step.why_recorded is not None
    assert "argument" in step.why_recorded


def test_host_batches_are_uploaded_as_arguments() -> None:
    batches = _batches(6)
    model = _model().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inner = _step_of(model, optimizer)
    step = WholeStep(lambda x: inner(x.to("tpu")), (optimizer,))
    losses = [float(step(x)) for x in batches]
    assert losses == pytest.approx(_reference(batches), rel=1e-4)
    assert step.replays > 0


def test_dropout_draws_anew_in_every_replay() -> None:
    model = torch.nn.Dropout(0.5)
    step = WholeStep(lambda x: model(x))
    ones = torch.ones(64, device="tpu")
    torch.manual_seed(5)
    ours = [step(ones).cpu() for _ in range(6)]
    torch.manual_seed(5)
    theirs = [model(ones).cpu() for _ in range(6)]
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(ours[4], ours[5])


def test_reading_a_value_inside_is_refused_with_the_line() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x

    with pytest.raises(WorkloadError, match=r"test_runtime_whole_step\.py:\d+"):
        WholeStep(inner)(torch.ones(3, device="tpu"))
    # The device works on as before.
    assert (torch.ones(3, device="tpu") + 1).sum().item() == 6


def test_optimizer_state_can_be_read_and_written_between_steps() -> None:
    batches = _batches(10)
    model = _model().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = WholeStep(_step_of(model, optimizer), (optimizer,))
    losses = []
    for i, x in enumerate(batches):
        losses.append(float(step(x.to("tpu"))))
        counts = [state["step"] for state in optimizer.state.values()]
        if i == 5:
            assert [c.item() for c in counts] == [6.0] * 4
        if i == 7:
            counts[0].fill_(8.0)  # what it is already, written anew
    assert losses == pytest.approx(_reference(batches), rel=1e-4)


def test_gradients_that_accumulate_over_steps_are_kept() -> None:
    def run(device: str) -> list[float]:
        model = _model().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def inner(x: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = model(x).square().mean()
            loss.backward()  # nothing zeroes the gradients: they add up
            optimizer.step()
            return loss.detach()

        step = WholeStep(inner, (optimizer,)) if device == "tpu" else inner
        return [float(step(x.to(device))) for x in _batches(7)]

    assert run("tpu") == pytest.approx(run("cpu"), rel=1e-4)


def test_a_fence_waits_for_every_step() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(700, 700).to("tpu") for _ in range(2)]

    def slow(index: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def step(x: torch.Tensor) -> torch.Tensor:
            for _ in range(6):
                x = x @ weights[index] / 27
            weights[index].copy_(x)
            return x.sum()

        return step

    steps = [WholeStep(slow(0)), WholeStep(slow(1))]
    x = torch.randn(700, 700).to("tpu")
    for _ in range(4):  # recorded, then replayed; the two do not depend on one another
        for step in steps:
            step(x)
    assert all(step.replays for step in steps)
    for rounds in (1, 3):
        for _ in range(rounds):
            results = [step(x) for step in steps]
        torch.tpu.synchronize()  # type: ignore[attr-defined]
        for tensor in (*weights, *results):
            array: Any = buffer_of(tensor).ready()
            assert array.is_ready()
