"""The format of one stored program: a header that can be read alone, then the program, checked.

8 bytes  magic and version, "tpuperf2"
8 bytes  length of the header, little endian
8 bytes  length of the whole entry
32 bytes SHA-256 of the header as it stands in the file
header   JSON, compressed with zstd
body     StableHLO bytecode, then PJRT's serialized executable, compressed with zstd
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import zstandard

from tpu_perf.program_store.components import COMPONENTS, Components

MAGIC = b"tpuperf2"
_FAMILY = b"tpuperf"
_PRELUDE = struct.Struct("<8sQQ32s")
PRELUDE_BYTES = _PRELUDE.size
#: Fast, and XLA's code shrinks to a third with it; higher levels gain some per cent.
_LEVEL = 3

Shape = tuple[tuple[int, ...], str]  # shape and dtype
Fault = Literal["foreign", "other version", "truncated", "damaged", "refused"]


class EntryFault(ValueError):
    """An entry that cannot be used. `fault` is its kind."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(f"{fault}: {message}")
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Header:
    """What a stored program says of itself. `outputs` are shapes and dtypes; `compile_ns` is
    what tracing and compiling took when it was made."""

    name: str
    kind: str  # op | segment | graph | step | transfer
    components: Components
    outputs: Sequence[Shape]
    compile_ns: int
    created_s: float = field(default_factory=time.time)

    @property
    def key(self) -> str:
        return self.components.key


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored program: its header, StableHLO bytecode and PJRT's serialized executable. `blob`
    is the entry as it is stored."""

    header: Header
    stablehlo: bytes
    executable: bytes
    blob: bytes = field(repr=False)


def make_entry(header: Header, stablehlo: bytes, executable: bytes) -> Entry:
    """The entry that holds this program."""
    body = stablehlo + zstandard.ZstdCompressor(level=_LEVEL).compress(executable)
    document = {
        "name": header.name, "kind": header.kind, "key": header.key,
        "components": dict(header.components.texts),
        "outputs": [[list(shape), dtype] for shape, dtype in header.outputs],
        "compile_ns": header.compile_ns, "created_s": header.created_s,
        "stablehlo_bytes": len(stablehlo), "body_sha256": hashlib.sha256(body).hexdigest(),
    }  # fmt: skip
    text = zstandard.ZstdCompressor(level=_LEVEL).compress(json.dumps(document).encode())
    total = PRELUDE_BYTES + len(text) + len(body)
    prelude = _PRELUDE.pack(MAGIC, len(text), total, hashlib.sha256(text).digest())
    return Entry(header, stablehlo, executable, prelude + text + body)


def header_end(prelude: bytes) -> int:
    """Where the header of an entry ends, from its first PRELUDE_BYTES bytes. Raises EntryFault."""
    return PRELUDE_BYTES + _lengths(prelude)[0]


def read_header(start: bytes, total_bytes: int | None = None) -> Header:
    """The header of an entry, from its start (up to `header_end` at least) and, where known, its
    length. The body is not checked. Raises EntryFault."""
    return _header(start, total_bytes)[0]


def read_entry(blob: bytes, key: str | None = None) -> Entry:
    """The whole entry, checked. `key` is the key it is stored under. Raises EntryFault."""
    header, document, end = _header(blob, len(blob))
    if key is not None and header.key != key:
        raise EntryFault("foreign", f"holds the program of another key, {header.key[:16]}")
    body = memoryview(blob)[end:]
    if hashlib.sha256(body).hexdigest() != document["body_sha256"]:
        raise EntryFault("damaged", "the program's checksum does not match")
    cut = document["stablehlo_bytes"]
    try:
        executable = zstandard.ZstdDecompressor().decompress(body[cut:])
    except zstandard.ZstdError as error:
        raise EntryFault("damaged", str(error)) from None
    return Entry(header, bytes(body[:cut]), executable, blob)


def _lengths(prelude: bytes) -> tuple[int, int, bytes]:
    if len(prelude) < PRELUDE_BYTES:
        if prelude[: len(MAGIC)] == MAGIC[: len(prelude)]:
            raise EntryFault("truncated", f"only {len(prelude)} bytes are left")
        raise EntryFault("foreign", "not an entry of this cache")
    magic, header_bytes, total_bytes, checksum = _PRELUDE.unpack_from(prelude)
    if magic != MAGIC:
        if magic.startswith(_FAMILY):
            version = magic[len(_FAMILY) :].decode("ascii", "replace")
            raise EntryFault(
                "other version",
                f"written in format {version} by another version of tpu_perf; this one reads "
                f"format {MAGIC[len(_FAMILY) :].decode()}",
            )
        raise EntryFault("foreign", "not an entry of this cache")
    return header_bytes, total_bytes, checksum


def _header(blob: bytes, total_bytes: int | None) -> tuple[Header, Mapping[str, Any], int]:
    header_bytes, announced, checksum = _lengths(blob)
    end = PRELUDE_BYTES + header_bytes
    if total_bytes is not None and total_bytes < announced:
        raise EntryFault("truncated", f"{total_bytes:,} of {announced:,} bytes are left")
    if len(blob) < end or (total_bytes is not None and total_bytes != announced):
        raise EntryFault("damaged", "its lengths do not agree")
    text = blob[PRELUDE_BYTES:end]
    if hashlib.sha256(text).digest() != checksum:
        raise EntryFault("damaged", "the header's checksum does not match")
    try:
        document = json.loads(zstandard.ZstdDecompressor().decompress(text))
        components = _components(document)
        header = Header(
            document["name"], document["kind"], components,
            [(tuple(shape), dtype) for shape, dtype in document["outputs"]],
            document["compile_ns"], document["created_s"],
        )  # fmt: skip
        body = document["body_sha256"], document["stablehlo_bytes"]
    except (KeyError, TypeError, ValueError, zstandard.ZstdError) as error:
        raise EntryFault("foreign", f"its header is not one of ours ({error})") from None
    del body
    return header, document, end


def _components(document: Mapping[str, Any]) -> Components:
    """The components as the header gives them. Their hashes are worked out by who compares."""
    texts = document["components"]
    if set(texts) != set(COMPONENTS):
        raise ValueError("other components than this version's")
    return Components(document["key"], texts, {})
