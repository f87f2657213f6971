"""Ladders started from the page Run: one at a time, each a process of its own with a log."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tpu_perf.errors import EnvironmentProblem, TpuPerfError

from .directory import Directory

#: What of a log is shown: its end.
LOG_TAIL_BYTES = 20_000
STOP_TIMEOUT_S = 20.0
ENDED = {
    0: "ended well",
    2: "did not start: the ladder file or an override is wrong",
    3: "ended; a rung failed",
    4: "ended: this machine or installation cannot do it",
    130: "was interrupted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderProcess:
    """A ladder under way or ended; `out` is its directory; what it says goes to a log
    beside it."""

    process: subprocess.Popen[bytes]
    command: tuple[str, ...]
    out: Path

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def ending(self) -> str:
        """How it ended, in words; empty while it runs."""
        code = self.process.poll()
        if code is None:
            return ""
        if code < 0:
            return f"was ended by signal {-code}"
        return ENDED.get(code, f"ended with code {code}")

    def interrupt(self) -> None:
        """What Ctrl-C does: the ladder stops and leaves what it has, readable."""
        if self.running:
            self.process.send_signal(signal.SIGINT)


_lock = threading.Lock()
_started: dict[Path, LadderProcess] = {}


def start(
    directory: Directory, file: Path, overrides: Sequence[str], only: Sequence[str]
) -> LadderProcess:
    """Run `tpu-perf ladder` into a new directory under DIR.

    Raises TpuPerfError while another ladder of this dashboard runs, since both would measure
    each other, and EnvironmentProblem where DIR cannot be written.
    """
    with _lock:
        if any(one.running for one in _started.values()):
            raise TpuPerfError(
                "another ladder is running, and two at a time would measure each other",
                hint="wait for it, or stop it",
            )
        out = directory.root / f"{file.stem}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        command = [sys.executable, "-m", "tpu_perf", "ladder", str(file), f"--out={out}"]
        command += [f"--set={override}" for override in overrides]
        command += [f"--only={','.join(only)}"] if only else []
        log = out.with_name(out.name + ".log")
        try:
            with log.open("xb") as sink:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                    env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
                )  # fmt: skip
        except OSError as error:
            raise EnvironmentProblem(
                f"no ladder can be started in {directory.root}: {error}"
            ) from None
        _started[out] = LadderProcess(process=process, command=tuple(command), out=out)
        return _started[out]


def started(out: Path) -> LadderProcess | None:
    """The process that fills this directory, if this dashboard started it."""
    return _started.get(out)


def running() -> LadderProcess | None:
    return next((one for one in _started.values() if one.running), None)


def tail(log: Path) -> str:
    """The end of a log, empty where there is none."""
    if not log.is_file():
        return ""
    try:
        with log.open("rb") as source:
            source.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            return source.read().decode(errors="replace")
    except OSError:
        return ""


@atexit.register
def _interrupt_all() -> None:
    """A ladder that nobody can watch or stop any more is not left behind."""
    left = [one for one in _started.values() if one.running]
    for one in left:
        one.interrupt()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for one in left:
        try:
            one.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
