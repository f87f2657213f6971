"""Compiled programs: built once, kept in memory, and in tiers that survive the process."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import jax

from tpu_perf.program_store.components import Components, Process, explain, nearest, shared
from tpu_perf.program_store.store import ProgramStore
from tpu_perf.record.events import Tier
from tpu_perf.recorder import active
from tpu_perf.recorder.packing import execute_event
from tpu_perf.runtime import jax_private
from tpu_perf.runtime.cache_keys import Aval, components_of, options_text, process_components
from tpu_perf.runtime.cache_tiers import FIRST_USE, Tiers, Wanted
from tpu_perf.runtime.call_description import Part
from tpu_perf.runtime.failures import large_bytes, watched
from tpu_perf.runtime.outstanding import OUTSTANDING
from tpu_perf.runtime.source_lines import user_line as user_line
from tpu_perf.runtime.torch_private import dynamo_looking_away

#: Keys of one name that a new one is compared with: the latest, fewer where texts are long.
_MOST_SEEN, _MOST_LONG_SEEN, _LONG_TEXT = 64, 4, 10_000
_clock = time.perf_counter_ns
_log = logging.getLogger("tpu_perf.cache")


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
    #: None where it runs on one device. Bytes are of whole tensors in any case.
    placement: jax_private.Placement | None = field(default=None, repr=False)
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


@dataclass(frozen=True, slots=True)
class _Seen:
    components: Components


class ProgramCache:
    """The memory tier, over the tiers that outlive the process."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.by_key: dict[str, Program] = {}
        self.tiers = Tiers()
        self.compiler_options: dict[str, Any] = {}
        self.cache_only = False
        self.allowed = True
        self.dump_on_miss = False
        self.compiled = 0
        self.loaded = 0
        self._by_request: dict[Any, Program] = {}
        self._seen: dict[str, deque[_Seen]] = {}
        self._process: Process | None = None
        self._lock = threading.RLock()
        self._indices = itertools.count()

    @property
    def directory(self) -> ProgramStore | None:
        """The tier that is a directory or lies behind a URL, None where there is none."""
        return self.tiers.directory

    def use_directory(
        self, location: str | os.PathLike[str] | None, max_bytes: int | None = None
    ) -> None:
        """Keep programs in this directory (which is created) or behind this fsspec URL, in
        `max_bytes` at most; None: nowhere. Raises EnvironmentProblem for a URL that no installed
        file system reaches."""
        self.tiers.use_directory(location, max_bytes)

    def use_host(self, where: bool | str | os.PathLike[str]) -> None:
        """Share programs with the other processes of this host: True (in shared memory), a
        directory, or False. Without a call the environment decides: on where torchrun started
        several processes."""
        self.tiers.use_host(where)

    @property
    def misses(self) -> int:
        """Look-ups that the memory tier could not answer."""
        return self.compiled + self.loaded

    def process(self) -> Process:
        """The components of every key that are the same all over this process."""
        if self._process is None:
            self._process = process_components()
        return self._process

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
        placement: jax_private.Placement | None = None,
    ) -> Program:
        """The program for this key: from memory, from another tier, or compiled now. `differed`
        says why there is another of this name, where the caller knows better than the keys.
        `parts` gives the ops that it computes, when somebody asks. `placement` makes it a program
        over several devices; `key_text` must tell it."""
        options = options_text(self.compiler_options)
        request = (key_text, tuple(in_avals), tuple(donated), options)
        with self._lock:
            known = self._by_request.get(request) if self.allowed else None
            if known is not None:
                return known
            components = components_of(self.process(), key_text, in_avals, donated, options)
            explained = active.recorder is not None or self.dump_on_miss
            wanted = Wanted(name, kind, components, next(self._indices), len(in_avals), explained,
                            placement)  # fmt: skip
            with dynamo_looking_away():
                program = self._make(wanted, ops, compute, in_avals, donated, differed)
            program.parts = parts
            self._by_request[request] = self.by_key[program.key] = program
            self.programs.append(program)
            return program

    def _make(
        self, wanted: Wanted, ops: int, compute: Callable[..., Any], in_avals: Sequence[Aval],
        donated: Sequence[int], differed: str | None,
    ) -> Program:  # fmt: skip
        start = _clock()
        name, key = wanted.name, wanted.components.key
        with ExitStack() as held:
            found = self.tiers.find(wanted, held) if self.allowed else None
            trace_ns = 0
            if found is not None:
                tier, executable, out_avals = found.tier, found.executable, found.out_avals
                stablehlo = found.entry.stablehlo
                self.loaded += 1
                end = _clock()
            else:
                if self.cache_only:
                    raise RuntimeError(f"program {name} is not in the cache, and only cached "
                                       "programs are allowed (_set_cache_only)")  # fmt: skip
                began = _clock()
                lowered = jax_private.lower(compute, in_avals, donated, xla_name(name, key),
                                            wanted.placement)  # fmt: skip
                traced = _clock()
                trace_ns = traced - began
                executable = lowered.compile(self.compiler_options)
                tier, out_avals, stablehlo = Tier.COMPILED, lowered.out_avals, lowered.bytecode()
                self.compiled += 1
                end = _clock()
                if self.allowed:
                    self.tiers.keep(wanted, executable, stablehlo, out_avals, end - began)
        self._record(start, end, trace_ns, wanted, tier, differed, stablehlo)
        in_bytes = [_nbytes(a) for a in in_avals]
        return Program(
            index=wanted.index, key=key, name=name, kind=wanted.kind, ops=ops,
            bytes_in=sum(in_bytes), bytes_out=sum(_nbytes(a) for a in out_avals),
            donated_bytes=sum(in_bytes[i] for i in donated), executable=executable,
            stablehlo=stablehlo, tier=tier, compile_ns=end - start, placement=wanted.placement,
        )  # fmt: skip

    def _record(
        self, start: int, end: int, trace_ns: int, wanted: Wanted, tier: Tier,
        differed: str | None, stablehlo: bytes,
    ) -> None:  # fmt: skip
        if wanted.explained:
            if differed is None:
                differed = self._what_differed(wanted)
            source = user_line() or ""
            recorder = active.recorder
            if recorder is not None:
                step = recorder.step
                if tier is Tier.COMPILED:
                    recorder.lookup((start, end, wanted.index, wanted.components.key, int(tier),
                                     1, "", step))  # fmt: skip
                recorder.compile((start, end, wanted.index, int(tier), trace_ns,
                                  end - start - trace_ns, differed, source, step))  # fmt: skip
            if self.dump_on_miss and tier is Tier.COMPILED:
                _log.warning(
                    "cache miss: %s %s, key %s, at %s: %s\n%s", wanted.kind, wanted.name,
                    wanted.components.key, source or "unknown", differed,
                    jax_private.stablehlo_text(stablehlo),
                )  # fmt: skip
        seen = self._seen.get(wanted.name)
        if seen is None:
            long = len(wanted.components.texts["program"]) > _LONG_TEXT
            seen = self._seen[wanted.name] = deque(maxlen=_MOST_LONG_SEEN if long else _MOST_SEEN)
        seen.append(_Seen(wanted.components))

    def _what_differed(self, wanted: Wanted) -> str:
        """What differs between a program and the nearest one that memory or a tier knows."""
        near = list(wanted.near)
        known = nearest(wanted.components, self._seen.get(wanted.name, ()))
        if known is not None:
            count = shared(wanted.components, known.components)
            near.insert(0, (count, explain(known.components, wanted.components)))
        return max(near, key=lambda n: n[0])[1] if near else FIRST_USE

    def clear(self) -> None:
        """Forget the memory tier; the next look-ups go to the other tiers or the compiler."""
        self.by_key.clear()
        self._by_request.clear()


def _nbytes(aval: Aval) -> int:
    count = 1
    for n in aval[0]:
        count *= n
    return count * aval[1].itemsize


def xla_name(name: str, key: str) -> str:
    """The HLO module's name (after `jit_`): it must tell programs apart in XLA's profiles."""
    return "".join(c if c.isalnum() else "_" for c in name)[:80] + f"__{key[:10]}"


def statistics(cache: ProgramCache) -> Mapping[str, Any]:
    """TorchTPU's `_get_cache_stats` document; under "tiers" what each tier was asked and had."""
    requests = sum(p.executions for p in cache.programs)
    return {
        "num_cache_reqs": requests,
        "num_cache_hits": requests - cache.misses,
        "tiers": {
            "memory": {"requests": requests, "hits": requests - cache.misses},
            **cache.tiers.statistics(),
            "compiled": cache.compiled,
            "waited_for_another_process": cache.tiers.waited,
        },
        "per_entry_stats": {
            p.key: {
                "name": p.name,
                "compilation_duration": p.compile_ns / 1e9,
                "tier": p.tier.name.lower(),
                "last_read": p.last_read_s or p.created_s,
                "read_count": p.executions,
            }
            for p in cache.programs
        },
    }


CACHE = ProgramCache()
