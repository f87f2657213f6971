"""The peer's own virtual environment: made once in the user's cache directory, then reused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

REQUIREMENTS = ("torch==2.13.0", "torch_tpu==0.2.0", "xla-cpu-pjrt==0.0.1")
#: Written last, so that an interrupted installation is not taken for a complete one.
_MARKER = "tpu_perf_complete"


class PeerMissing(Exception):
    """The peer cannot be installed here; the message says why."""


class Peer:
    """Finds or makes the peer's interpreter when it is first asked for."""

    def __init__(self, python: Path | None, say: Callable[[str], None]) -> None:
        self._given = python
        self._say = say
        self._found: Path | None = None
        self._problem: str | None = None

    def python(self) -> Path:
        """The interpreter. Raises PeerMissing, at once if it failed before."""
        if self._problem is not None:
            raise PeerMissing(self._problem)
        if self._found is None:
            try:
                self._found = self._given_python() or self._own_python()
            except (PeerMissing, OSError, subprocess.SubprocessError) as error:
                self._problem = f"peer not available: {error}"
                raise PeerMissing(self._problem) from error
        return self._found

    def _given_python(self) -> Path | None:
        if self._given is None:
            return None
        if not self._given.is_file():
            raise PeerMissing(f"{self._given} does not exist")
        return self._given

    def _own_python(self) -> Path:
        root = _cache_directory() / "torch_tpu-0.2.0"
        python = root / "bin" / "python"
        marker = root / _MARKER
        wanted = "\n".join(REQUIREMENTS)
        if marker.is_file() and marker.read_text() == wanted and python.is_file():
            return python
        self._say(f"installing the peer into {root} (once, some minutes)")
        shutil.rmtree(root, ignore_errors=True)
        venv.create(root, with_pip=True)
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS],
            stdout=sys.stderr,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise PeerMissing(f"pip install {' '.join(REQUIREMENTS)} failed: {lines[-1]}")
        marker.write_text(wanted)
        return python


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tpu_perf"
