"""Compiles programs for a target in child processes, with limits of time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tpu_perf.errors import EnvironmentProblem
from tpu_perf.predict.compile_worker import HLO, STABLEHLO, UNOPTIMISED
from tpu_perf.predict.compiled import Compiled, NotCompiled, Outcome, Request
from tpu_perf.predict.libtpu import ENVIRONMENT, library_path
from tpu_perf.predict.memory_limits import reason_for_exhaustion

_POLL_S = 0.2
_GIB = 2**30
#: libtpu's last words that say nothing about the cause.
_NOISE = ("https://symbolize", "***", "PC: @", "    @", "E0000", "W0000", "I0000", "WARNING: Log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one compile: seconds of wall clock, and bytes of memory of the child process."""

    seconds: float = 1800.0
    memory_bytes: int = 16 * _GIB


class Compiler:
    """One child process at a time, kept for further programs of the same flags.

    Nothing here raises for a program that does not compile: see `NotCompiled`.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        """Raises EnvironmentProblem where libtpu is not installed."""
        library = library_path()
        if library is None or not library.exists():
            raise EnvironmentProblem(
                "libtpu, the TPU's compiler, is not installed"
                if library is None
                else f"TPU_LIBRARY_PATH names {library}, which is not there",
                hint="pip install 'tpu_perf[predict]'",
            )
        self._library = library
        self.limits = limits or Limits()
        self._worker: _Worker | None = None

    def __enter__(self) -> Compiler:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child process, if there is one."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def compile(self, request: Request) -> Outcome:
        """Compile one program. Where libtpu cannot profile its machine code, it is compiled again
        without the profile."""
        outcome = self._compile(request, llo=request.llo)
        if request.llo and isinstance(outcome, NotCompiled) and outcome.status != "does_not_fit":
            outcome = self._compile(request, llo=False)
        return outcome

    def _compile(self, request: Request, *, llo: bool) -> Outcome:
        worker = self._worker_for(request.init_args, llo)
        with tempfile.TemporaryDirectory(prefix="tpu_perf-compile-") as name:
            folder = Path(name)
            (folder / STABLEHLO).write_bytes(request.stablehlo)
            message = {
                "folder": name,
                "topology": request.target.topology_name,
                "topology_options": request.target.topology_options,
                "options": dict(request.options),
                "device_order": list(request.device_order),
            }
            answer = worker.ask(message, self.limits)
            if answer["status"] in ("timeout", "exhausted_here", "died"):
                self.close()
            return _outcome(request, answer, folder)

    def _worker_for(self, init_args: str, llo: bool) -> _Worker:
        if self._worker is not None and self._worker.serves == (init_args, llo):
            return self._worker
        self.close()
        self._worker = _Worker(self._library, init_args, llo)
        return self._worker


class _Worker:
    """The child process."""

    def __init__(self, library: Path, init_args: str, llo: bool) -> None:
        self.serves = (init_args, llo)
        self._folder = Path(tempfile.mkdtemp(prefix="tpu_perf-compiler-"))
        environment = {**os.environ, **ENVIRONMENT, "TPU_LIBRARY_PATH": str(library)}
        environment["TPU_PERF_AUTOLOAD"] = "0"
        environment.pop("XLA_FLAGS", None)  # those of XLA:CPU stop libtpu
        arguments = [sys.executable, "-m", "tpu_perf.predict.compile_worker"]
        if llo:
            profiles = self._folder / "llo"
            profiles.mkdir()
            init_args = f"{init_args} --xla_jf_dump_static_llo_profile_to={profiles}".strip()
            arguments.append(str(profiles))
        environment["LIBTPU_INIT_ARGS"] = init_args
        self._log = self._folder / "log.txt"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def ask(self, message: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """The worker's answer, or {"status": "timeout" | "exhausted_here" | "died", ...}."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        seen = self._log.stat().st_size
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        deadline = time.monotonic() + limits.seconds
        while not select.select([self._process.stdout], [], [], _POLL_S)[0]:
            if time.monotonic() > deadline:
                return {"status": "timeout", "message": f"{limits.seconds:,.0f} s"}
            used = self._memory_bytes()
            if used > limits.memory_bytes:
                return {"status": "exhausted_here", "message": f"{used / _GIB:.1f} GiB"}
        line = self._process.stdout.readline()
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        code = self._process.wait()
        return {"status": "died", "message": self._last_words(seen), "code": code}

    def _memory_bytes(self) -> int:
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def _last_words(self, since: int) -> str:
        with self._log.open("rb") as log:
            log.seek(since)
            lines = log.read().decode("utf-8", "replace").splitlines()
        told = [one.strip() for one in lines if one.strip() and not one.startswith(_NOISE)]
        loud = [one for one in lines if one.startswith("F0000")]  # a failed check of libtpu's
        return (loud or told or ["it left no message"])[-1][:400]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # a request that was never read
                    pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _outcome(request: Request, answer: dict[str, Any], folder: Path) -> Outcome:
    status, message = answer["status"], str(answer.get("message", ""))
    hlo = folder / HLO
    if status == "ok":
        return Compiled(
            name=request.name,
            target=request.target,
            hlo=hlo.read_bytes(),
            unoptimised=(folder / UNOPTIMISED).read_bytes(),
            memory_bytes=answer["memory"],
            peak_memory_bytes=answer["peak_memory_bytes"],
            partitions=answer["partitions"],
            replicas=answer["replicas"],
            llo_cycles=answer["llo_cycles"],
            compile_s=answer["seconds"],
            compiler=answer["platform_version"],
        )
    if status == "exhausted":
        fits_not = reason_for_exhaustion(
            message, request.target, hlo.read_bytes() if hlo.exists() else None
        )
        return NotCompiled(
            name=request.name, target=request.target, status="does_not_fit", reason=fits_not
        )
    kind, reason = {
        "timeout": ("timeout", f"libtpu had not compiled it after {message}"),
        "exhausted_here": ("exhausted", f"compiling it took more than {message} on this machine"),
        "died": ("failed", f"libtpu crashed (exit {answer.get('code')}): {message}"),
        "failed": ("failed", f"libtpu refused it: {message}"),
    }[status]
    return NotCompiled(
        name=request.name,
        target=request.target,
        status=kind,  # type: ignore[arg-type]
        reason=reason,
    )
