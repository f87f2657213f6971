"""One tier of the program cache on disk: entries are checked, bad ones set aside, old ones evicted.

An entry is the file `<key>.program`. What is set aside becomes `<key>.bad`, with the reason in
`<key>.reason`. Nothing here ever stops a job: a tier that fails goes off, and says so once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

from tpu_perf.program_store.components import COMPONENTS, Components, explain
from tpu_perf.program_store.entry import (
    MAGIC,
    PRELUDE_BYTES,
    Entry,
    EntryFault,
    Header,
    header_end,
    read_entry,
    read_header,
)
from tpu_perf.program_store.index import Index
from tpu_perf.program_store.storage import (
    TEMPORARY,
    Storage,
    StoredFile,
    age_s,
    storage_at,
)

ENTRY, BAD, REASON = ".program", ".bad", ".reason"
#: Says which format a directory's entries have; without it they are looked through once.
FORMAT = "FORMAT"
#: A hit renews an entry's stamp if it is older than this: one system call an hour and program.
STAMP_AFTER_S = 3600.0
#: Eviction goes on to this share of the limit, so that not every write evicts.
_EVICT_TO = 0.9
#: Half-written files older than this were left by a writer that died.
ABANDONED_AFTER_S = 3600.0
#: The headers of nearly all entries lie within so many bytes.
_HEADER_BYTES = 16 * 1024
_log = logging.getLogger("tpu_perf.cache")


class ProgramStore:
    """Compiled programs in a directory or behind a URL.

    `disabled` says why nothing is written any more, None while all is well; `notices` holds what
    else a user should know. `max_bytes` limits what is kept; None: no limit.
    """

    def __init__(
        self, location: str | os.PathLike[str], max_bytes: int | None = None, what: str = ""
    ) -> None:
        """`what` is the tier's name in messages. Raises EnvironmentProblem where no installed
        file system of fsspec reaches the URL."""
        self.storage: Storage = storage_at(location)
        self.location = self.storage.location
        self.max_bytes = max_bytes
        self.disabled: str | None = None
        self.notices: list[str] = []
        self._noticed: set[str] = set()
        self.evicted = 0
        #: Entries set aside by this process, and why.
        self.faults: dict[str, str] = {}
        self._what = what or "program cache"
        self._index = Index(self.storage)
        self._held_bytes: int | None = None  # an estimate: other processes write too
        self._checked_format = False
        self._lock = threading.Lock()
        try:
            self.storage.prepare()
        except OSError as error:
            self.disable(str(error))

    def read(self, key: str) -> Entry | None:
        """The entry, or None where there is none, or it is damaged (then it is set aside)."""
        if self.disabled is not None and self.storage.remote:
            return None  # each try would wait for the network anew
        self._check_format()
        try:
            blob, used_s = self.storage.read(key + ENTRY)
        except FileNotFoundError:
            return None
        except OSError as error:
            if self.storage.remote:
                self.disable(str(error))
            return None
        try:
            entry = read_entry(blob, key)
        except EntryFault as error:
            self.set_aside(key, str(error))
            return None
        self._used(key, used_s)
        return entry

    def write(self, entry: Entry) -> None:
        """Store an entry; a full disk or a read-only directory only costs the caching."""
        if self.disabled is not None:
            return
        self._check_format()
        size = len(entry.blob)
        if self.max_bytes is not None and size > self.max_bytes:
            self.notice("too large", f"{entry.header.name} ({size:,} bytes) is larger than the "
                         f"limit of {self.max_bytes:,} bytes, and is not kept")  # fmt: skip
            return
        try:
            self.storage.write(entry.header.key + ENTRY, entry.blob)
            self._index.add(entry.header.name, entry.header.components)
            if self.max_bytes is not None:
                self._make_room(size, entry.header.key)
        except OSError as error:
            self.disable(str(error))

    def set_aside(self, key: str, why: str) -> None:
        """Put a bad entry out of the way, so that it is rebuilt and can be looked at."""
        self.faults[key] = why
        _log.warning("%s: entry %s set aside: %s", self._what, key[:16], why)
        try:
            self.storage.rename(key + ENTRY, key + BAD)
            self.storage.write(key + REASON, f"{why}\n".encode())
        except FileNotFoundError:
            pass  # another process was faster
        except OSError as error:
            self.disable(str(error))

    def nearest(self, name: str, wanted: Components) -> Components | None:
        """The components of the entry of this name that shares most of them, None if the store
        knows of none but the wanted one."""
        return None if self.disabled and self.storage.remote else self._index.nearest(name, wanted)

    def explain(self, nearest: Components, wanted: Components) -> str:
        """What differs between an entry of the index and a key; reads the entry's header where
        the index has not the text."""
        lacking = [
            n for n in COMPONENTS
            if nearest.digests.get(n) != wanted.digests.get(n) and n not in nearest.texts
        ]  # fmt: skip
        if lacking:
            with contextlib.suppress(OSError, EntryFault):
                header = header_of(self.storage, nearest.key + ENTRY)
                nearest = Components(nearest.key, header.components.texts, nearest.digests)
        return explain(nearest, wanted)

    def disable(self, why: str) -> None:
        """Stop using the tier for writing, and say so once."""
        if self.disabled is None:
            self.disabled = why
            _log.warning("%s at %s is off from here on: %s", self._what, self.location, why)

    def notice(self, kind: str, text: str) -> None:
        """Tell the user something, once of each kind."""
        if kind not in self._noticed:
            self._noticed.add(kind)
            self.notices.append(text)
            _log.warning("%s at %s: %s", self._what, self.location, text)

    def _used(self, key: str, used_s: float | None) -> None:
        """Note the use of an entry. Behind a URL that is one more request, so it is done only
        where there is a limit to evict for."""
        if self.storage.remote:
            if self.max_bytes is None:
                return
        elif used_s is None or time.time() - used_s < STAMP_AFTER_S:
            return
        with contextlib.suppress(OSError):  # a read-only directory keeps no stamps
            self.storage.touch(key + ENTRY)

    def _check_format(self) -> None:
        """Once a directory: set aside what former versions of tpu_perf left there."""
        if self._checked_format:
            return
        self._checked_format = True
        if not self.storage.remote:  # former versions wrote no URLs
            with contextlib.suppress(OSError):
                self._set_former_aside()

    def _set_former_aside(self) -> None:
        try:
            if self.storage.read(FORMAT)[0] == MAGIC:
                return
        except FileNotFoundError:
            pass
        former = 0
        for file in self.storage.files():
            if not file.name.endswith(ENTRY):
                continue
            try:
                header_end(self.storage.read_start(file.name, PRELUDE_BYTES))
            except EntryFault as error:
                if error.fault == "other version":
                    former += 1
                    stem = file.name.removesuffix(ENTRY)
                    self.storage.rename(file.name, stem + BAD)
                    self.storage.write(stem + REASON, f"{error}\n".encode())
        if former:
            self.notice("former", f"{former} entries of another version of tpu_perf were set "
                         "aside and are compiled again when needed (`tpu-perf cache clear "
                         "--foreign` deletes them)")  # fmt: skip
        self.storage.write(FORMAT, MAGIC)

    def _make_room(self, added: int, newest: str) -> None:
        """Keep to the limit after a write: the least recently used entries go first."""
        assert self.max_bytes is not None
        with self._lock:
            if self._held_bytes is None:
                self._held_bytes = sum(f.size_bytes for f in self.storage.files())
            else:
                self._held_bytes += added
            if self._held_bytes <= self.max_bytes:
                return
            gone = evict(self.storage, int(self.max_bytes * _EVICT_TO), spare=newest + ENTRY)
            self.evicted += len(gone.files)
            self._held_bytes = gone.left_bytes


class Evicted:
    """What an eviction deleted, and how many bytes are left."""

    def __init__(self, files: list[StoredFile], left_bytes: int) -> None:
        self.files = files
        self.left_bytes = left_bytes


def evict(
    storage: Storage, keep_bytes: int, spare: str = "",
    told: Callable[[StoredFile], object] | None = None,
) -> Evicted:  # fmt: skip
    """Delete until at most `keep_bytes` are left: first what was set aside or half written, then
    entries, least recently used first (where their use is unknown, before all others). `spare`
    is kept. Raises OSError."""
    files = storage.files()
    left = sum(file.size_bytes for file in files)
    candidates = [f for f in files if f.name != spare and _may_go(f)]
    candidates.sort(key=lambda f: (f.name.endswith(ENTRY), f.used_s or 0.0))
    deleted = []
    for file in candidates:
        if left <= keep_bytes:
            break
        storage.delete(file.name)
        left -= file.size_bytes
        deleted.append(file)
        if told is not None:
            told(file)
    return Evicted(deleted, left)


def _may_go(file: StoredFile) -> bool:
    if file.name.endswith(TEMPORARY):
        age = age_s(file)
        return age is not None and age > ABANDONED_AFTER_S
    return file.name.endswith((ENTRY, BAD, REASON))


def header_of(storage: Storage, name: str, size_bytes: int | None = None) -> Header:
    """The header of the entry in this file, without reading all of it. Raises OSError,
    EntryFault."""
    start = storage.read_start(name, _HEADER_BYTES)
    end = header_end(start)
    if end > len(start) and (size_bytes is None or end <= size_bytes):
        start = storage.read_start(name, end)
    return read_header(start, size_bytes)
