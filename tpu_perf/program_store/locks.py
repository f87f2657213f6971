"""Locks between the processes of one host: of several that need one program, one compiles."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Literal

#: How long the wait for a lock sleeps between two looks, at first and at most.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.1

Outcome = Literal["free", "waited", "timeout", "no locks"]


class FileLock:
    """A lock on a file, by flock: the kernel releases it when its holder dies, however it dies.

    As a context manager it gives how it was come by: free (nobody held it), waited (it was held,
    and was released), timeout (it is still held by another) or no locks (the file system has
    none). Only after the first two is it held.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._file: int | None = None

    def __enter__(self) -> Outcome:
        deadline = time.monotonic() + self._timeout_s
        pause = _FIRST_PAUSE_S
        waited = False
        while True:
            try:
                taken = self._try()
            except OSError:
                return "no locks"
            if taken:
                return "waited" if waited else "free"
            waited = True
            if time.monotonic() >= deadline:
                return "timeout"
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _try(self) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return False
            except OSError:
                os.close(file)
                raise
            if self._is_at_path(file):
                self._file = file
                return True
            os.close(file)  # its last holder deleted it between our two calls

    def _is_at_path(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(self._path))
        except FileNotFoundError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._file is None:
            return
        try:
            self._path.unlink(missing_ok=True)  # while held: who opens it anew gets a new file
        except OSError:
            pass
        finally:
            os.close(self._file)
            self._file = None
