"""Helpers of the ladder tests: a tiny job of one's own, and the real command in a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import psutil

JOB = """
    import os, time, torch

    def make(fail_at=None, how="raise", slow_s=0.0, slow_from=0, hidden=8):
        model = torch.nn.Sequential(torch.nn.Linear(4, hidden), torch.nn.Tanh(),
                                    torch.nn.Linear(hidden, 1))
        calls = 0
        def batches(i):
            g = torch.Generator().manual_seed(i)
            return {"x": torch.randn(16, 4, generator=g), "y": torch.randn(16, 1, generator=g)}
        def loss(model, batch):
            nonlocal calls
            calls += 1
            print("user prints something in step", calls)
            time.sleep(slow_s if calls > slow_from else 0)
            if fail_at is not None and calls > fail_at:
                if how == "memory":
                    raise MemoryError("no room for the activations")
                if how == "die":
                    os._exit(7)
                raise ValueError("my model broke half-way")
            return (model(batch["x"]) - batch["y"]).square().mean()
        return model, batches, loss
"""

LADDER = """
    name: tiny
    workload: {kind: python, function: "./job.py:make"}
    optimizer: {name: sgd, lr: 0.1, momentum: 0.9}
    sampling: {rounds: 3, steps_per_round: 4, quiet_steps: 2, max_warmup_steps: 6,
               numerics_steps: 4, timeout_s: 120}
    cache_dir: null
    baseline: cpu_eager
    rungs:
"""


def write_ladder(folder: Path, *rungs: str) -> Path:
    """A ladder file over the tiny job, with these lines under `rungs:`."""
    (folder / "job.py").write_text(dedent(JOB))
    file = folder / "tiny.yaml"
    file.write_text(dedent(LADDER) + "".join(f"  - {rung}\n" for rung in rungs))
    return file


def changed(name: str, **params: object) -> str:
    """A cpu_eager rung whose job gets these parameters."""
    given = ", ".join(f"{key}: {value}" for key, value in params.items())
    return f"{{name: {name}, rung: cpu_eager, workload: {{params: {{{given}}}}}}}"


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "tpu_perf", *map(str, arguments)]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False)


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """The command in a process group of its own, as a shell would start it."""
    return subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def workers_of(parent: int) -> list[psutil.Process]:
    """Rung workers of a running ladder command, in the order in which they were started."""
    try:
        children = psutil.Process(parent).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child for child in children if "tpu_perf.ladder.worker" in _line(child)]


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
