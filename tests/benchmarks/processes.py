"""The parent's end of a worker: started once, stopped by signal while another one is measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.benchmarks.contenders import Spec

_ROOT = Path(__file__).parents[2]
#: Compiling everything on a busy machine takes a few minutes at most.
_TIMEOUT_S = 900.0


class WorkerFailed(Exception):
    """A worker ended or hung; the message holds its last words, `spec` is what it was to run."""

    def __init__(self, spec: Spec, message: str) -> None:
        super().__init__(message)
        self.spec = spec


class Worker:
    """A contender in a process of its own. Use as a context manager."""

    def __init__(self, spec: Spec, python: Path) -> None:
        self.spec = spec
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the worker
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
        environment["PYTHONPATH"] = str(_ROOT)
        environment.setdefault("JAX_PLATFORMS", "cpu")  # the peers run on the CPU as well
        self._process = subprocess.Popen(
            [str(python), "-m", "tests.benchmarks.worker", json.dumps(asdict(spec))],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # a signal to the group reaches threads and children alike
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._log.close()

    def ready(self) -> dict[str, Any]:
        """The worker's first message; the worker is stopped afterwards."""
        return self._answer()

    def run(self, count: int, variant: str) -> list[int]:
        """Nanoseconds of `count` timed units."""
        self._signal(signal.SIGCONT)
        pipe = self._process.stdin
        assert pipe is not None
        try:
            print(json.dumps({"count": count, "variant": variant}), file=pipe, flush=True)
        except BrokenPipeError:
            raise self._failure("ended early") from None
        times: list[int] = self._answer()["times"]
        return times

    def _answer(self) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        watchdog = threading.Timer(_TIMEOUT_S, self._signal, [signal.SIGKILL])
        watchdog.start()
        try:
            line = pipe.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise self._failure("ended early")
        self._signal(signal.SIGSTOP)
        message: dict[str, Any] = json.loads(line)
        return message

    def _failure(self, what: str) -> WorkerFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line.split(":")[0]]
        last = (errors or lines or ["it said nothing"])[-1]
        return WorkerFailed(self.spec, f"worker {self.spec.kind} {what}: {last[:300]}")

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def own_python() -> Path:
    """The interpreter that runs the parent."""
    return Path(sys.executable)
