"""Several threads on device "tpu" at once: each computes what it computes alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.recorder import Recorder, record_into
from tpu_perf.runtime.modes import EagerMode, mode_set_to

THREADS = 4
MODES = {
    "strict": EagerMode.DEFER_NEVER,
    "debug": EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING,
    "defer_and_fuse": EagerMode.DEFER_AND_FUSE,
    "compile": EagerMode.DEFER_NEVER,
}


def _in_threads(work: Callable[[int], Any]) -> list[Any]:
    """The results of work(0), work(1), ... run at once. Raises what any of them raised."""
    results: list[Any] = [None] * THREADS
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        start.wait()
        try:
            results[number] = work(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread waits for ever"
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _train(seed: int, compiled: bool) -> torch.Tensor:
    """Losses and final parameters of a small net, from numbers that only the seed decides."""
    numbers = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=numbers) * 0.3
    model = model.to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    forward: Any = torch.compile(model, backend="tpu") if compiled else model
    seen: list[torch.Tensor] = []
    for step in range(5):
        x = torch.randn(5, 8, generator=numbers).to("tpu")
        optimizer.zero_grad()
        loss = (forward(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
        if step % 2:
            loss.item()
    seen += [p.detach().flatten() for p in model.parameters()]
    return torch.cat([s.cpu().view(-1) for s in seen])


@pytest.mark.parametrize("mode", MODES)
def test_nets_train_in_threads_as_they_do_alone(mode: str) -> None:
    with mode_set_to(MODES[mode]):
        alone = [_train(i, mode == "compile") for i in range(THREADS)]
        for _ in range(2):
            together = _in_threads(lambda i: _train(i, mode == "compile"))
            for found, wanted in zip(together, alone, strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_new_thread_runs_its_backward_itself_and_compiles_nothing_new() -> None:
    with mode_set_to(EagerMode.DEFER_AND_FUSE):
        for _ in range(2):
            _train(0, False)
        recorder = Recorder()
        with record_into(recorder):
            _in_threads(lambda i: _train(i, False))
        assert recorder.drain()["compile"].num_rows == 0


def test_threads_that_use_each_others_pending_values_never_block() -> None:
    shared = [torch.zeros(4, device="tpu") for _ in range(THREADS)]
    sums: list[float] = []

    def work(number: int) -> None:
        for _ in range(60):
            value = shared[(number + 1) % THREADS] * 0 + 1
            shared[number] = shared[number] + value

    with mode_set_to(EagerMode.DEFER_AND_FUSE):
        _in_threads(work)
        sums = [t.sum().item() for t in shared]
    assert sums == [240.0] * THREADS


def test_backward_on_torchs_own_worker_thread_gives_the_same_gradients() -> None:
    x = torch.linspace(0.1, 1, 6).view(2, 3)

    def gradient(device: str) -> torch.Tensor:
        leaf = x.clone().to(device).requires_grad_()
        (leaf.exp() * leaf).sum().backward()
        assert leaf.grad is not None
        return leaf.grad.cpu()

    for mode in (EagerMode.DEFER_NEVER, EagerMode.DEFER_AND_FUSE):
        with mode_set_to(mode), torch.autograd.set_multithreading_enabled(True):
            torch.testing.assert_close(gradient("tpu"), gradient("cpu"))
