"""The peer's own interpreter: one that was named, or the one of the engine torch_tpu."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tpu_perf.engines.torch_tpu.environment import build
from tpu_perf.errors import EnvironmentProblem


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
                self._found = self._given_python() or build(self._say)
            except (PeerMissing, EnvironmentProblem, OSError, subprocess.SubprocessError) as error:
                self._problem = f"peer not available: {error}"
                raise PeerMissing(self._problem) from error
        return self._found

    def _given_python(self) -> Path | None:
        if self._given is None:
            return None
        if not self._given.is_file():
            raise PeerMissing(f"{self._given} does not exist")
        return self._given
