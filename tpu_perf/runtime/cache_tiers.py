"""The tiers below memory: one shared by the processes of a host, and a directory or a bucket."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tpu_perf.errors import EnvironmentProblem
from tpu_perf.program_store import places
from tpu_perf.program_store.components import Components, shared
from tpu_perf.program_store.entry import Entry, Header, make_entry
from tpu_perf.program_store.locks import FileLock
from tpu_perf.program_store.store import ProgramStore
from tpu_perf.record.events import Tier
from tpu_perf.recorder import active
from tpu_perf.runtime import jax_private
from tpu_perf.runtime.cache_keys import Aval
from tpu_perf.runtime.dtypes import TO_NUMPY

FIRST_USE = "first use"
_DTYPES = {str(d): d for d in TO_NUMPY.values()}
_clock = time.perf_counter_ns
_log = logging.getLogger("tpu_perf.cache")


@dataclass(slots=True)
class Wanted:
    """A program that memory does not have. `index` is the row it gets in the program table;
    `near` collects what the tiers know that is like it: components shared, and what differs."""

    name: str
    kind: str
    components: Components
    index: int
    in_count: int
    explained: bool  # somebody wants to know what differed
    placement: jax_private.Placement | None = None
    near: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found:
    """A program that a tier had, loaded."""

    tier: Tier
    entry: Entry
    executable: jax_private.Executable
    out_avals: list[Aval]


class Tiers:
    """Set up by the environment when first needed, unless `use_host` or `use_directory` was
    called before."""

    def __init__(self) -> None:
        self.asked: Counter[Tier] = Counter()
        self.hits: Counter[Tier] = Counter()
        self.waited = 0  # look-ups that another process of this host answered by compiling
        self.problems: list[str] = []
        self._directory: ProgramStore | None = None
        self._host: ProgramStore | None = None
        self._directory_chosen = self._host_chosen = False
        self._locks = Path()
        self._wait_s = places.DEFAULT_WAIT_S
        self._compiling = False

    @property
    def directory(self) -> ProgramStore | None:
        if not self._directory_chosen:
            try:
                self.use_directory(os.environ.get(places.DIRECTORY_VARIABLE) or None)
            except EnvironmentProblem as error:
                self._problem("the directory tier is off", error)
        return self._directory

    @property
    def host(self) -> ProgramStore | None:
        if not self._host_chosen:
            self.use_host(places.host_wanted())
        return self._host

    def use_directory(
        self, location: str | os.PathLike[str] | None, max_bytes: int | None = None
    ) -> None:
        """Keep programs in this directory or behind this URL, None: nowhere. Without `max_bytes`
        the environment's limit holds. Raises EnvironmentProblem where no installed file system
        reaches the URL, or the environment's limit is no size."""
        self._directory_chosen = True
        self._directory = None
        if location is not None:
            limit = places.limit_bytes() if max_bytes is None else max_bytes
            self._directory = ProgramStore(location, limit, "program cache, directory tier")

    def use_host(self, where: bool | str | os.PathLike[str]) -> None:
        """Share programs with the processes of this host: True or a directory, False: do not."""
        self._host_chosen = True
        self._host = None
        if where is False:
            return
        root = places.host_root() if where is True else Path(where)
        try:
            places.prepare_host_root(root)
            self._wait_s = places.wait_s()
            self._host = ProgramStore(
                root, places.host_limit_bytes(root), "program cache, host tier"
            )
            self._locks = root / "locks"
        except (OSError, EnvironmentProblem) as error:
            self._problem("the host tier is off", error)

    def _problem(self, what: str, error: Exception) -> None:
        self.problems.append(f"{what}: {error}")
        _log.warning("program cache: %s: %s", what, error)

    def find(self, wanted: Wanted, held: ExitStack) -> Found | None:
        """Ask the tiers in turn. If None comes back the caller must compile, and call `keep`
        before it closes `held`: that lets go of the lock on which other processes wait."""
        host = self.host
        if host is not None:
            found = self._ask(Tier.HOST, host, wanted, _clock())
            if found is not None:
                return found
            found = self._after_others(host, wanted, held)
            if found is not None:
                return found
        directory = self.directory
        if directory is None:
            return None
        found = self._ask(Tier.DIRECTORY, directory, wanted, _clock())
        if found is not None and host is not None:
            host.write(found.entry)
        return found

    def _after_others(self, host: ProgramStore, wanted: Wanted, held: ExitStack) -> Found | None:
        """Take the program's lock; what another process compiled meanwhile is found."""
        if self._compiling:  # two locks at once could wait for each other
            return None
        start = _clock()
        lock = FileLock(self._locks / f"{wanted.components.key}.lock", self._wait_s)
        how = held.enter_context(lock)
        if how == "timeout":
            host.notice("waited", f"waited {self._wait_s:g} s for another process to compile "
                        f"{wanted.name}, then compiled it here too")  # fmt: skip
        self._compiling = True
        held.callback(setattr, self, "_compiling", False)
        if how not in ("waited", "timeout"):
            return None
        found = self._ask(Tier.HOST, host, wanted, start)
        self.waited += found is not None
        return found

    def _ask(self, tier: Tier, store: ProgramStore, wanted: Wanted, start: int) -> Found | None:
        self.asked[tier] += 1
        key = wanted.components.key
        found = None
        entry = store.read(key)
        if entry is not None:
            try:
                avals = [(shape, _DTYPES[dtype]) for shape, dtype in entry.header.outputs]
                executable = jax_private.load(
                    entry.executable, wanted.in_count, avals, wanted.placement
                )
                found = Found(tier, entry, executable, avals)
                self.hits[tier] += 1
            except Exception as error:  # PJRT raises many types on a foreign entry
                store.set_aside(key, f"refused: PJRT says: {error}")
        end = _clock()
        differed = ""
        if found is None and wanted.explained:
            differed = self._why_missed(store, wanted)
        recorder = active.recorder
        if recorder is not None:
            recorder.lookup((start, end, wanted.index, key, int(tier), int(found is not None),
                             differed, recorder.step))  # fmt: skip
        return found

    @staticmethod
    def _why_missed(store: ProgramStore, wanted: Wanted) -> str:
        fault = store.faults.get(wanted.components.key)
        if fault is not None:
            return f"its entry was set aside ({fault})"
        near = store.nearest(wanted.name, wanted.components)
        if near is None:
            return FIRST_USE
        differed = store.explain(near, wanted.components)
        wanted.near.append((shared(wanted.components, near), differed))
        return differed

    def keep(
        self, wanted: Wanted, executable: jax_private.Executable, stablehlo: bytes,
        out_avals: Sequence[Aval], compile_ns: int,
    ) -> None:  # fmt: skip
        """Store a program just compiled in every tier that takes it."""
        stores = [s for s in (self.host, self.directory) if s is not None and s.disabled is None]
        if not stores:
            return
        try:
            serialized = executable.serialize()
        except Exception as error:  # optional in PJRT
            for store in stores:
                store.disable(f"PJRT cannot serialize programs: {error}")
            return
        outputs = [(shape, str(np.dtype(dtype))) for shape, dtype in out_avals]
        header = Header(wanted.name, wanted.kind, wanted.components, outputs, compile_ns)
        entry = make_entry(header, stablehlo, serialized)
        for store in stores:
            store.write(entry)

    def notes(self) -> str | None:
        """What a user should know of the tiers, None where all is well."""
        told = list(self.problems)
        for name, store in (("host", self._host), ("directory", self._directory)):
            if store is not None:
                if store.disabled is not None:
                    told.append(f"the {name} tier went off: {store.disabled}")
                told += [f"the {name} tier: {notice}" for notice in store.notices]
        return "; ".join(told) or None

    def statistics(self) -> dict[str, Any]:
        """Look-ups below memory and their hits, by tier."""
        return {
            tier.name.lower(): {"requests": self.asked[tier], "hits": self.hits[tier]}
            for tier in (Tier.HOST, Tier.DIRECTORY)
        }
