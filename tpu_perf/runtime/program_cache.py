"""Compiled programs: built once, kept in memory, and in a directory that survives the process."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np

from tpu_perf.record.events import Tier
from tpu_perf.recorder import active
from tpu_perf.recorder.packing import execute_event
from tpu_perf.runtime import jax_private
from tpu_perf.runtime.cache_directory import CacheDirectory, CacheEntry
from tpu_perf.runtime.call_description import Part
from tpu_perf.runtime.failures import large_bytes, watched
from tpu_perf.runtime.outstanding import OUTSTANDING
from tpu_perf.runtime.torch_private import dynamo_looking_away

Aval = tuple[tuple[int, ...], "np.dtype[Any]"]
_clock = time.perf_counter_ns


@dataclass(eq=False, slots=True)
class Program:
    """One XLA program: the unit that is compiled, cached, executed and recorded."""

    index: int
    key: str
    name: str
    kind: str  # op | segment | graph | step | transfer
    ops: int
    bytes_in: int
    bytes_out: int
    donated_bytes: int
    executable: jax_private.Executable
    stablehlo: bytes = field(repr=False)
    tier: Tier
    compile_ns: int
    created_s: float = field(default_factory=time.time)
    executions: int = 0
    last_read_s: float = 0.0
    #: The aten ops that it computes, in order; worked out when asked for.
    parts: Callable[[], list[Part]] = field(default=list, repr=False)
    call: Callable[..., tuple[jax.Array, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.call = self.executable.call
        needed = self.bytes_out + (self.executable.temp_bytes() or 0)
        if needed >= large_bytes():
            self.call = watched(self.call, f"{self.kind} {self.name}", needed)

    def run(self, *args: Any) -> tuple[jax.Array, ...]:
        """Enqueue the program; returns its outputs without waiting for them."""
        self.executions = first = self.executions + 1
        recorder = active.recorder
        start = _clock() if recorder is not None else 0
        outs = self.call(*args)
        if self.kind == "step" and outs:
            OUTSTANDING.step_started(outs[-1])
        else:
            OUTSTANDING.anything = True
        if recorder is None:
            return outs
        tier = self.tier if first == 1 else Tier.MEMORY
        recorder.execute(execute_event(start, _clock(), self.index, tier, recorder.step))
        return outs


class ProgramCache:
    """Memory tier and directory tier. `directory` None switches the latter off."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.by_key: dict[str, Program] = {}
        self.directory: CacheDirectory | None = None
        self.compiler_options: dict[str, Any] = {}
        self.cache_only = False
        self.allowed = True
        self.compiled = 0
        self.loaded = 0
        self._last_of: dict[str, str] = {}
        self._fingerprint: tuple[str, ...] | None = None
        self._lock = threading.RLock()
        self._indices = itertools.count()

    def use_directory(self, path: str | os.PathLike[str] | None) -> None:
        """Switch the directory tier on (creating the directory) or, with None, off."""
        self.directory = None if path is None else CacheDirectory(Path(path))

    @property
    def misses(self) -> int:
        """Look-ups that the memory tier could not answer."""
        return self.compiled + self.loaded

    def fingerprint(self) -> tuple[str, ...]:
        if self._fingerprint is None:
            import torch

            self._fingerprint = (
                *jax_private.platform_fingerprint(),
                f"torch={torch.__version__}",
                f"lowerings={_source_digest()}",
            )
        return self._fingerprint

    def build(
        self,
        *,
        name: str,
        kind: str,
        ops: int,
        key_text: str,
        compute: Callable[..., Any],
        in_avals: Sequence[Aval],
        donated: Sequence[int] = (),
        differed: str | None = None,
        parts: Callable[[], list[Part]] = list,
    ) -> Program:
        """The program for this key: from memory, from the directory, or compiled now. `differed`
        says why there is another of this name, where the caller knows better than the keys.
        `parts` gives the ops that it computes, when somebody asks."""
        options = json.dumps(self.compiler_options, sort_keys=True, default=str)
        identity = f"{key_text}|donated={tuple(donated)}|options={options}"
        key = hashlib.sha256("\n".join((*self.fingerprint(), identity)).encode()).hexdigest()
        with self._lock:
            known = self.by_key.get(key) if self.allowed else None
            if known is not None:
                return known
            with dynamo_looking_away():
                program = self._make(
                    key, name, kind, ops, identity, compute, in_avals, donated, differed
                )
            program.parts = parts
            self.by_key[key] = program
            self.programs.append(program)
            return program

    def _make(
        self, key: str, name: str, kind: str, ops: int, identity: str,
        compute: Callable[..., Any], in_avals: Sequence[Aval], donated: Sequence[int],
        differed: str | None,
    ) -> Program:  # fmt: skip
        start = _clock()
        entry = None
        if self.directory is not None and self.allowed:
            entry = self.directory.read(key)
        executable = None
        trace_ns = 0
        tier = Tier.COMPILED
        if entry is not None:
            try:
                executable = jax_private.load(entry.executable, len(in_avals), entry.out_avals)
                tier = Tier.DIRECTORY
                self.loaded += 1
            except Exception as error:  # PJRT raises many types on a foreign entry
                assert self.directory is not None
                self.directory.set_aside(key, f"PJRT refused it: {error}")
                entry = None
        if executable is None:
            if self.cache_only:
                raise RuntimeError(f"program {name} is not in the cache, and only cached programs "
                                   "are allowed (_set_cache_only)")  # fmt: skip
            lowered = jax_private.lower(compute, in_avals, donated, xla_name(name, key))
            trace_ns = _clock() - start
            executable = lowered.compile(self.compiler_options)
            entry = CacheEntry(name, identity, lowered.bytecode(), lowered.out_avals, b"")
            self.compiled += 1
        assert entry is not None
        end = _clock()
        index = next(self._indices)
        self._record(start, end, trace_ns, index, tier, name, identity, differed)
        if tier is Tier.COMPILED and self.directory is not None and self.allowed:
            self.directory.write(key, entry.with_executable(executable.serialize()))
        in_bytes = [_nbytes(a) for a in in_avals]
        return Program(
            index=index, key=key, name=name, kind=kind, ops=ops,
            bytes_in=sum(in_bytes), bytes_out=sum(_nbytes(a) for a in entry.out_avals),
            donated_bytes=sum(in_bytes[i] for i in donated), executable=executable,
            stablehlo=entry.stablehlo, tier=tier, compile_ns=end - start,
        )  # fmt: skip

    def _record(
        self,
        start: int,
        end: int,
        trace_ns: int,
        index: int,
        tier: Tier,
        name: str,
        identity: str,
        differed: str | None,
    ) -> None:
        recorder = active.recorder
        before = self._last_of.get(name)
        self._last_of[name] = identity
        if recorder is not None:
            if differed is None:
                first = before is None
                differed = "first use" if first else _first_difference(before or "", identity)
            recorder.compile((start, end, index, int(tier), trace_ns, end - start - trace_ns,
                              differed, user_line() or "", recorder.step))  # fmt: skip

    def clear(self) -> None:
        """Forget the memory tier; the next look-ups go to the directory or the compiler."""
        self.by_key.clear()


def _nbytes(aval: Aval) -> int:
    count = 1
    for n in aval[0]:
        count *= n
    return count * aval[1].itemsize


def xla_name(name: str, key: str) -> str:
    """The HLO module's name (after `jit_`): it must tell programs apart in XLA's profiles."""
    return "".join(c if c.isalnum() else "_" for c in name)[:80] + f"__{key[:10]}"


def _first_difference(before: str, after: str) -> str:
    """The first place where two keys of one program name differ, a few words of each."""
    limit = min(len(before), len(after))
    at = next((i for i in range(limit) if before[i] != after[i]), limit)
    at = max(before.rfind(",", 0, at), before.rfind("(", 0, at), 0)
    return f"...{before[at : at + 48]} -> {after[at : at + 48]}..."


def _source_digest() -> str:
    """A digest of the code that turns ops into programs: a change of it makes old entries miss."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


#: Frames of these packages are not the user's.
_LIBRARY_PARTS = ("site-packages", "dist-packages", "/lib/python", "<")
_OWN = str(Path(__file__).parent.parent)


def user_line() -> str | None:
    """`file:line` of the nearest frame that belongs to neither a library nor this package, None
    if there is none."""
    frame: FrameType | None = sys._getframe(1)
    nearest_library = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_OWN, "<")):
            if not any(part in name for part in _LIBRARY_PARTS):
                return f"{name}:{frame.f_lineno}"
            if nearest_library is None and "/torch/" not in name and "site-packages" in name:
                nearest_library = f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return nearest_library


def statistics(cache: ProgramCache) -> Mapping[str, Any]:
    """TorchTPU's `_get_cache_stats` document."""
    return {
        "num_cache_reqs": sum(p.executions for p in cache.programs),
        "num_cache_hits": sum(p.executions for p in cache.programs) - cache.misses,
        "per_entry_stats": {
            p.key: {
                "name": p.name,
                "compilation_duration": p.compile_ns / 1e9,
                "last_read": p.last_read_s or p.created_s,
                "read_count": p.executions,
            }
            for p in cache.programs
        },
    }


CACHE = ProgramCache()
