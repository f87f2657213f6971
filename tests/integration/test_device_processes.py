"""Forked and spawned processes, and DataLoader's workers, beside device "tpu"."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.runtime.modes import EagerMode, mode_set_to


def _in_a_fork(work: Callable[[], Any]) -> str:
    """What a forked child gets from `work`: its result or its complaint, as text."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = repr(work())
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(sink, told.encode())
        os._exit(0)
    os.close(sink)
    with os.fdopen(source) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return told


def test_a_forked_child_that_uses_the_device_is_told_to_be_spawned(mode: EagerMode) -> None:
    x = torch.ones(3, device="tpu") + 1
    compiled = torch.compile(lambda t: t * 3, backend="tpu")
    compiled(x)
    uses: list[Callable[[], Any]] = [
        lambda: x + 1,
        lambda: x.tolist(),
        lambda: x.add_(1),
        lambda: torch.randn(7, device="tpu"),
        lambda: torch.ones(9).to("tpu"),
        lambda: compiled(x),
        torch.tpu.synchronize,  # type: ignore[attr-defined]
    ]
    for use in uses:
        told = _in_a_fork(use)
        assert told.startswith("RuntimeError: device tpu was used before this process was forked")
        assert "spawn" in told
    assert _in_a_fork(lambda: (torch.manual_seed(3), torch.ones(3).sum().item())[1]) == "3.0"
    assert x.tolist() == [2, 2, 2]


def test_a_child_forked_before_the_first_use_works() -> None:
    code = """
import os, torch, tpu_perf.runtime.device
child = os.fork()
os.write(1, f"{(torch.ones(2, device='tpu') + 1).tolist()}\\n".encode())  # print writes twice
if child:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[2.0, 2.0]"] * 2


def _double(sent: Any, answers: Any) -> None:
    answers.put((sent.to("tpu") * 2).cpu().numpy())


def test_a_spawned_process_has_a_device_of_its_own() -> None:
    assert (torch.ones(2, device="tpu") * 2).tolist() == [2, 2]
    context: Any = torch.multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_double, args=(torch.arange(3.0), answers))
    process.start()
    assert answers.get(timeout=100).tolist() == [0, 2, 4]
    process.join(60)
    assert process.exitcode == 0


class _OnDevice(Dataset[torch.Tensor]):
    """A dataset that makes the mistake of keeping its data on the device."""

    def __init__(self) -> None:
        self.data = torch.arange(8.0, device="tpu") + 1

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.data[index] * 1


def test_data_loaders_feed_the_device() -> None:
    data = TensorDataset(torch.arange(8.0), torch.arange(8))
    with mode_set_to(EagerMode.DEFER_AND_FUSE):
        for workers in (0, 2):
            loader = DataLoader(data, batch_size=4, num_workers=workers, pin_memory=True)
            total = torch.zeros((), device="tpu")
            for values, numbers in loader:
                assert values.is_pinned()
                assert numbers.is_pinned()
                total += (values.to("tpu", non_blocking=True) * numbers.to("tpu")).sum()
            assert total.item() == 140
    named = DataLoader(data, batch_size=8, pin_memory=True, pin_memory_device="tpu")
    with pytest.warns(UserWarning, match="pin_memory_device is deprecated"):
        batches = iter(named)
    assert next(batches)[0].is_pinned()
    with pytest.raises(RuntimeError, match=r"(?s)Caught RuntimeError in DataLoader worker.*spawn"):
        next(iter(DataLoader(_OnDevice(), batch_size=2, num_workers=1)))
    assert next(iter(DataLoader(_OnDevice(), batch_size=2))).tolist() == [1, 2]
    assert not torch.ones(2).is_pinned()
    assert not torch.ones(2, device="tpu").is_pinned()
