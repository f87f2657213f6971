"""Killing a worker, the parent, or pressing Ctrl-C: what was measured stays readable."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.integration.ladder_commands import (
    changed,
    run,
    start,
    stop,
    wait_until,
    workers_of,
    write_ladder,
)
from tpu_perf.record.store import load_ladder, load_run

SLOW = changed("slow", slow_s=0.3)
#: Sleeps from its second step on, which without numerics only a rung reaches.
SLEEPS = changed("sleeps", slow_s=60, slow_from=1)
NO_REFERENCE = ("--set", "sampling.numerics_steps=0")


def steps_written(out: Path, rung: str) -> bool:
    return (out / "rungs" / f"{rung}.partial" / "steps.parquet").exists()


def test_a_killed_worker_is_a_failed_row_and_the_others_go_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start("ladder", write_ladder(tmp_path, "cpu_eager", SLOW), "--out", out)
    try:
        wait_until(lambda: steps_written(out, "slow"))
        os.kill(workers_of(process.pid)[-1].pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    finally:
        stop(process)
    assert process.returncode == 3, errors
    slow, eager = load_run(out / "rungs" / "slow"), load_run(out / "rungs" / "cpu_eager")
    assert slow.run.status == "failed"
    assert "was killed by SIGKILL during" in (slow.run.reason or "")
    assert len(slow.steps()) > 0
    assert eager.run.status == "ok"
    assert load_ladder(out).finished_at is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_readable_ladder_that_resumes(
    tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    file = write_ladder(tmp_path, "cpu_eager", SLOW)
    process = start("ladder", file, "--out", out)
    try:
        wait_until(lambda: steps_written(out, "slow"))
        workers = workers_of(process.pid)
        os.kill(process.pid, number)
        output, errors = process.communicate(timeout=60)
    finally:
        stop(process)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "--resume" in errors
    assert "interrupted" in output
    assert not any(worker.is_running() for worker in workers)
    assert load_ladder(out).finished_at is None
    for name in ("cpu_eager", "slow"):
        stored = load_run(out / "rungs" / name)
        assert stored.run.status == "failed"
        assert "the ladder was interrupted during" in (stored.run.reason or "")
        assert len(stored.steps()) > 0
    assert run("show", out).returncode == 0
    if number == signal.SIGINT:
        done = run("ladder", file, "--out", out, "--resume")
        assert done.returncode == 0, done.stderr
        assert load_ladder(out).finished_at is not None


def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    out = tmp_path / "out"
    file = write_ladder(tmp_path, "cpu_eager", SLEEPS)
    process = start("ladder", file, "--out", out, *NO_REFERENCE)
    try:
        wait_until(lambda: steps_written(out, "cpu_eager") and len(workers_of(process.pid)) == 2)
        workers = workers_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)  # one worker waits, the other sleeps in a step
        process.wait()
        _, alive = psutil.wait_procs(workers, timeout=15)
    finally:
        stop(process)
    assert not alive
    assert load_ladder(out).finished_at is None
    assert run("show", out).returncode == 0


def test_a_rung_that_takes_too_long_is_a_timeout(tmp_path: Path) -> None:
    out = tmp_path / "out"
    file = write_ladder(tmp_path, SLEEPS)
    settings = ("--set", "baseline=sleeps", "--set", "sampling.timeout_s=12")
    done = run("ladder", file, "--out", out, *settings, *NO_REFERENCE)
    assert done.returncode == 3
    stored = load_run(out / "rungs" / "sleeps")
    assert stored.run.status == "timeout"
    assert stored.run.reason == "exceeded timeout_s = 12 s during warm-up"
