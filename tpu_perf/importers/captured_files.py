"""Opens files that others wrote, gzipped or not, and says where they are damaged."""

from __future__ import annotations

import gzip
import json
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

from tpu_perf.errors import ImportProblem

_GZIP = b"\x1f\x8b"


def beginning(path: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of a file, unpacked; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(size)
        if not head.startswith(_GZIP):
            return head
        return zlib.decompressobj(wbits=31).decompress(head, size)
    except (OSError, zlib.error):
        return b""


def contents(path: Path) -> bytes:
    """The whole file, unpacked. Raises ImportProblem where it is empty, cut or unreadable."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ImportProblem(f"{path} cannot be read: {error.strerror or error}") from None
    if data.startswith(_GZIP):
        packed = len(data)
        try:
            data = gzip.decompress(data)
        except EOFError:
            raise ImportProblem(
                f"{path} is cut off: its gzip stream does not end within its {packed:,} bytes",
                hint="copy or record it again; a trace is complete only once its writer has ended",
            ) from None
        except (OSError, zlib.error) as error:
            raise ImportProblem(f"{path} is damaged: {error}") from None
    if not data.strip():
        raise ImportProblem(f"{path} is empty")
    return data


def json_document(path: Path) -> Any:
    """A JSON file; numbers with a point come as Decimal, since times in microseconds since 1970
    with nanosecond decimals have more digits than a float. Raises ImportProblem with the place."""
    data = contents(path)
    try:
        return json.loads(data.decode("utf-8", errors="replace"), parse_float=Decimal)
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(error.doc.rstrip()) - 1 or "Unterminated" in error.msg
        what = "is cut off" if at_end else "is not JSON"
        raise ImportProblem(
            f"{path} {what} at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except RecursionError:
        raise ImportProblem(f"{path} is not a trace: its values nest too deeply") from None
