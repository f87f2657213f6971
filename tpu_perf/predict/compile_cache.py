"""Compiled programs kept on disk, by program, target, flags and compiler, with progress told."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tpu_perf.predict.compiled import EXTRACT_VERSION, NotCompiled, Outcome, Request, pack, unpack
from tpu_perf.predict.compiler import Compiler, Limits
from tpu_perf.predict.libtpu import library_path
from tpu_perf.program_store.components import Components
from tpu_perf.program_store.entry import Header, make_entry
from tpu_perf.program_store.store import ProgramStore

#: Outcomes that another try may change are not kept.
_PASSING = ("timeout", "exhausted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Before (`outcome` None) and after each program: `number` of `total`, counted from 1."""

    number: int
    total: int
    name: str
    elapsed_s: float
    outcome: Outcome | None = None

    def __str__(self) -> str:
        where = f"[{self.number}/{self.total}] {self.name}"
        if self.outcome is None:
            return f"{where}: compiling"
        if isinstance(self.outcome, NotCompiled):
            return f"{where}: {self.outcome.reason}"
        how = "from the cache" if self.outcome.from_cache else f"{self.outcome.compile_s:.1f} s"
        return f"{where}: {how}"


def default_directory() -> Path:
    """The folder for compiled TPU programs in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tpu_perf" / "predicted"


class CompileCache:
    """Asks the disk first, then the compiler. libtpu need not be there for what is kept."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        told: Callable[[Progress], object] | None = None,
    ) -> None:
        """`directory` (or URL) is `default_directory()` if None."""
        self.store = ProgramStore(directory or default_directory(), what="compiled TPU programs")
        self._limits = limits
        self._told = told or (lambda _: None)
        self._compiler: Compiler | None = None

    def __enter__(self) -> CompileCache:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the compiler's process."""
        if self._compiler is not None:
            self._compiler.close()
            self._compiler = None

    def compile_all(self, requests: Iterable[Request]) -> list[Outcome]:
        """One outcome a request, in order; equal requests are compiled once.

        Raises EnvironmentProblem where something has to be compiled and libtpu is not there.
        """
        listed = list(requests)
        begin = time.monotonic()
        known: dict[str, Outcome] = {}
        for number, request in enumerate(listed, start=1):
            key = key_of(request).key
            if key in known:
                continue

            def tell(
                outcome: Outcome | None, number: int = number, name: str = request.name
            ) -> None:
                self._told(
                    Progress(
                        number=number,
                        total=len(listed),
                        name=name,
                        elapsed_s=time.monotonic() - begin,
                        outcome=outcome,
                    )
                )

            kept = self._kept(request, key)
            if kept is None:
                tell(None)
                kept = self._compile(request)
            known[key] = kept
            tell(kept)
        return [known[key_of(request).key] for request in listed]

    def _kept(self, request: Request, key: str) -> Outcome | None:
        entry = self.store.read(key)
        if entry is None:
            return None
        try:
            return unpack(entry.executable, request.name, request.target)
        except (ValueError, KeyError, TypeError) as error:
            self.store.set_aside(key, str(error))
            return None

    def _compile(self, request: Request) -> Outcome:
        if self._compiler is None:
            self._compiler = Compiler(self._limits)
        begin = time.perf_counter_ns()
        outcome = self._compiler.compile(request)
        if isinstance(outcome, NotCompiled) and outcome.status in _PASSING:
            return outcome
        header = Header(
            name=request.name,
            kind="predicted",
            components=key_of(request),
            outputs=(),
            compile_ns=time.perf_counter_ns() - begin,
        )
        self.store.write(make_entry(header, b"", pack(outcome)))
        return outcome


def key_of(request: Request) -> Components:
    """The key of a request, taken apart as the program store does, so that a miss is explained."""
    target = request.target
    placed = ",".join(map(str, request.device_order)) or "in order"
    return Components.of_texts(
        {
            "program": hashlib.sha256(request.stablehlo).hexdigest(),
            "inputs": "",
            "donation": "",
            "compiler_options": json.dumps(dict(request.options), sort_keys=True),
            "jax": importlib.metadata.version("jax"),
            "jaxlib": importlib.metadata.version("jaxlib"),
            "platform": "tpu, ahead of time" + (", with LLO profile" if request.llo else ""),
            "platform_version": f"libtpu {compiler_version()}",
            "device_kind": f"{target.slices}x{target.topology_name}, devices {placed}",
            "xla_flags": "",
            "libtpu_init_args": request.init_args,
            "host_cpu": "any",
            "torch": "none",
            "lowerings": f"extract {EXTRACT_VERSION}",
        }
    )


def compiler_version() -> str:
    """The version of libtpu that compiles: of the package, or of the file TPU_LIBRARY_PATH
    names (its size and time of change); "absent" without one."""
    if os.environ.get("TPU_LIBRARY_PATH"):
        library = library_path()
        if library is None or not library.exists():
            return "absent"
        facts = library.stat()
        return f"file of {facts.st_size} bytes, {facts.st_mtime_ns}"
    try:
        return importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        return "absent"
