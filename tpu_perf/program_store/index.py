"""The index of a store: for each name of a program a small file of the keys that it has there.

A miss asks it for the nearest entry, so that a large directory is never scanned. It only ever
explains: a line that is lost or stale costs an explanation, not a program.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from tpu_perf.program_store.components import COMPONENTS, Components, nearest
from tpu_perf.program_store.storage import Storage

FOLDER = "index"
#: Keys of one name that are compared, the latest ones.
_MOST_KEYS = 64
#: A file of the index longer than this is cut to the latest keys when a line is added.
_LONGEST_BYTES = 256 * 1024
#: Texts kept in the index; longer ones are read from the entry's own header when needed.
_LONGEST_TEXT = {"inputs": 2000, "compiler_options": 1000}
_LONGEST_OTHER = 120


@dataclass(frozen=True, slots=True)
class Line:
    """One key of the index. Its components lack long texts."""

    components: Components


class Index:
    """The index of one store. Each file is read once by a process, when first needed."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read: dict[str, list[Line]] = {}

    def nearest(self, name: str, wanted: Components) -> Components | None:
        """Of the entries of this name the one that shares most components."""
        found = nearest(wanted, self._lines(name))
        return None if found is None else found.components

    def add(self, name: str, components: Components) -> None:
        """Enter a key that is stored from now on. Raises OSError."""
        line = _line(components)
        file = _file(name)
        known = self._read.get(name)
        if known is not None:
            known.append(Line(components))
        self._storage.append(file, line)
        if known is not None and len(known) > 2 * _MOST_KEYS:
            kept = self._read[name] = known[-_MOST_KEYS:]
            self._storage.write(file, b"".join(_line(k.components) for k in kept))

    def _lines(self, name: str) -> list[Line]:
        lines = self._read.get(name)
        if lines is None:
            try:
                data, _ = self._storage.read(_file(name))
            except OSError:
                data = b""
            lines = self._read[name] = [
                parsed for line in data[-_LONGEST_BYTES:].splitlines()[-_MOST_KEYS:]
                if (parsed := _parse(line)) is not None
            ]  # fmt: skip
        return lines


def _file(name: str) -> str:
    return f"{FOLDER}/{hashlib.sha256(name.encode()).hexdigest()[:16]}.jsonl"


def _line(components: Components) -> bytes:
    document = {
        "key": components.key,
        "digests": [components.digests[name] for name in COMPONENTS],
        "texts": {
            name: text for name, text in components.texts.items()
            if name != "program" and len(text) <= _LONGEST_TEXT.get(name, _LONGEST_OTHER)
        },
    }  # fmt: skip
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _parse(line: bytes) -> Line | None:
    """A line of the index, None where it is damaged or another version's."""
    try:
        document = json.loads(line)
        digests: Mapping[str, str] = dict(zip(COMPONENTS, document["digests"], strict=True))
        return Line(Components(str(document["key"]), dict(document["texts"]), digests))
    except (ValueError, KeyError, TypeError):
        return None
