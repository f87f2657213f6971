"""The directory tier of the program cache: entries are checked, damaged ones set aside."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from tpu_perf.runtime.dtypes import TO_NUMPY

_MAGIC = b"tpuperf1"
_DTYPES = {str(d): d for d in TO_NUMPY.values()}
_log = logging.getLogger("tpu_perf.cache")

Aval = tuple[tuple[int, ...], "np.dtype[Any]"]


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One program on disk: its name and full key text, StableHLO bytecode, output shapes and
    dtypes, and PJRT's serialized executable."""

    name: str
    identity: str
    stablehlo: bytes
    out_avals: Sequence[Aval]
    executable: bytes

    def with_executable(self, executable: bytes) -> CacheEntry:
        return replace(self, executable=executable)


class CacheDirectory:
    """Entries as files named by key. Writers rename into place, so readers and other writers
    never see half an entry; a full disk or a read-only directory only costs the caching."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disabled: str | None = None
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._disable(error)

    def path(self, key: str) -> Path:
        return self.root / f"{key}.program"

    def read(self, key: str) -> CacheEntry | None:
        """The entry, or None where there is none or it is damaged (then it is set aside)."""
        try:
            blob = self.path(key).read_bytes()
        except OSError:
            return None
        try:
            return _decode(blob)
        except (ValueError, KeyError, struct.error, zstandard.ZstdError) as error:
            self.set_aside(key, str(error))
            return None

    def write(self, key: str, entry: CacheEntry) -> None:
        if self.disabled is not None:
            return
        temporary = self.root / f".{key}.{os.getpid()}.tmp"
        try:
            temporary.write_bytes(_encode(entry))
            os.replace(temporary, self.path(key))
        except OSError as error:
            temporary.unlink(missing_ok=True)
            self._disable(error)

    def set_aside(self, key: str, why: str) -> None:
        """Rename a bad entry so that it is rebuilt, and can be looked at."""
        _log.warning("cache entry %s set aside: %s", key[:16], why)
        try:
            os.replace(self.path(key), self.root / f"{key}.bad")
        except OSError as error:
            self._disable(error)

    def _disable(self, error: OSError) -> None:
        self.disabled = str(error)
        _log.warning("program cache in %s is off from here on: %s", self.root, error)


def _encode(entry: CacheEntry) -> bytes:
    payload = zstandard.ZstdCompressor(level=3).compress(entry.executable)
    header = {
        "name": entry.name,
        "identity": entry.identity,
        "out_avals": [[list(shape), str(dtype)] for shape, dtype in entry.out_avals],
        "sha256": hashlib.sha256(payload + entry.stablehlo).hexdigest(),
        "stablehlo_bytes": len(entry.stablehlo),
    }
    text = zstandard.ZstdCompressor(level=3).compress(json.dumps(header).encode())
    return _MAGIC + struct.pack("<Q", len(text)) + text + entry.stablehlo + payload


def _decode(blob: bytes) -> CacheEntry:
    if blob[:8] != _MAGIC:
        raise ValueError("not an entry of this cache, or of another version")
    (length,) = struct.unpack("<Q", blob[8:16])
    header = json.loads(zstandard.ZstdDecompressor().decompress(blob[16 : 16 + length]))
    stablehlo_end = 16 + length + header["stablehlo_bytes"]
    stablehlo, payload = blob[16 + length : stablehlo_end], blob[stablehlo_end:]
    if hashlib.sha256(payload + stablehlo).hexdigest() != header["sha256"]:
        raise ValueError("checksum does not match: truncated or damaged")
    avals = [(tuple(shape), _DTYPES[dtype]) for shape, dtype in header["out_avals"]]
    executable = zstandard.ZstdDecompressor().decompress(payload)
    return CacheEntry(header["name"], header["identity"], stablehlo, avals, executable)
