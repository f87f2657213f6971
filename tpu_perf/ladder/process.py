"""The parent's end of a worker process: start, talk with a deadline, stop, hear last words."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpu_perf.ladder.protocol import LineBuffer, Message, encode

_POLL_S = 1.0


class WorkerDied(Exception):
    """The worker's pipe closed. `exit_code` is negative for a signal."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"worker ended with {exit_code}")
        self.exit_code = exit_code


class WorkerTimeout(Exception):
    """No message came before the deadline."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What runs a worker: another Python than this one where an engine needs its own."""

    python: str
    variables: Mapping[str, str] = field(default_factory=dict)


class WorkerProcess:
    """A child interpreter in a process group of its own; its output goes to `log`."""

    def __init__(
        self, log: Path, threads: int | None = None, interpreter: Interpreter | None = None
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        commands_read, self._commands = os.pipe()
        self._replies, replies_write = os.pipe()
        environment = dict(os.environ)
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        # `python -m` puts the working directory in front, where a module of the user's may lie.
        interpreter = interpreter or Interpreter(sys.executable)
        environment |= interpreter.variables
        arguments = [interpreter.python, "-m", "tpu_perf.ladder.worker"]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*arguments, str(commands_read), str(replies_write)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(commands_read, replies_write),
                env=environment,
                # A group of its own: Ctrl-C reaches the ladder, which then ends its workers.
                start_new_session=True,
            )
        os.close(commands_read)
        os.close(replies_write)
        self._lines = LineBuffer()
        self._messages: deque[Message] = deque()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, **message: object) -> None:
        """Give a command. A worker that is gone is noticed by the next `receive`."""
        data = encode(message)
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._commands, data) :]

    def receive(self, timeout_s: float) -> Message:
        """The next message. Raises WorkerTimeout or WorkerDied."""
        deadline = time.monotonic() + timeout_s
        while not self._messages:
            left = deadline - time.monotonic()
            if left <= 0:
                raise WorkerTimeout
            ready, _, _ = select.select([self._replies], [], [], min(left, _POLL_S))
            if not ready:
                # A process that the worker started may hold the pipe open after its death.
                if self._process.poll() is not None:
                    raise WorkerDied(self._process.returncode)
                continue
            data = os.read(self._replies, 65536)
            if not data:
                raise WorkerDied(self._wait())
            self._messages.extend(self._lines.feed(data))
        return self._messages.popleft()

    def _wait(self) -> int:
        try:
            return self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def kill(self) -> None:
        """End the worker and whatever it started, and release its pipes. May be called twice."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for name in ("_commands", "_replies"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                setattr(self, name, -1)
                os.close(descriptor)

    def log_text(self) -> str:
        try:
            return self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
