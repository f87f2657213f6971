"""Reads torch's structured log: one record a header line, its payload on the lines below it.

A header is `V1203 01:23:46.759000 PID FILE:LINE] {json}`; a payload line begins with a tab; the
MD5 of the payload stands in the header as `has_payload`, which is how a cut log is noticed
(torch 2.13: TorchLogsFormatter and trace_structured in torch/_logging/_internal.py).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tpu_perf.errors import ImportProblem
from tpu_perf.importers.captured_files import contents

_HEADER = re.compile(
    r"^(?:\[rank\d+\]:)?[VIWEC](?P<date>\d{4} \d\d:\d\d:\d\d\.\d{6}) (?P<pid>\d+) "
    r"(?P<file>.*?):(?P<line>\d+)\](?: \[[^\]{]*\])* (?P<json>\{.*)$"
)
#: Keys of a record that say when and for which compilation it was written, not what it is.
CONTEXT = frozenset(
    {
        *("rank", "compiled_autograd_id", "frame_id", "frame_compile_id", "attempt", "severity"),
        *("timestamp", "pathname", "thread", "subgraph_name", "stack", "has_payload", "process"),
    }
)


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `time` has no year and no time zone; `kind` is what was logged."""

    line: int  # of the file, from 1
    time: str  # "1203 01:23:46.759000"
    pid: int
    kind: str
    metadata: dict[str, Any]
    payload: str | None

    @property
    def value(self) -> Any:
        """What stands under the record's kind."""
        return self.metadata.get(self.kind)


def looks_like_one(head: bytes) -> bool:
    """Whether the beginning of a file is that of a structured log."""
    first = head.lstrip().split(b"\n", 1)[0].decode("utf-8", errors="replace")
    return _HEADER.match(first) is not None


def records(path: Path) -> Iterator[Record]:
    """All records in order. Raises ImportProblem at the first line that is damaged."""
    text = contents(path).decode("utf-8", errors="surrogateescape")
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    at = 0
    while at < len(lines):
        header = _HEADER.match(lines[at])
        if header is None:
            raise ImportProblem(
                f"{path}, line {at + 1}: not a line of a structured log: {lines[at]!r:.80}"
            )
        first = at
        at += 1
        while at < len(lines) and lines[at].startswith("\t"):
            at += 1
        yield _record(path, first + 1, header, lines[first + 1 : at], last=at == len(lines))


def _record(
    path: Path, line: int, header: re.Match[str], payload_lines: list[str], last: bool
) -> Record:
    place = f"{path}, line {line}"
    cut = "the file is cut off there" if last else "the file is damaged there"
    try:
        metadata = json.loads(header["json"])
    except json.JSONDecodeError as error:
        raise ImportProblem(f"{place}: {cut}: {error.msg} at column {error.colno}") from None
    payload = "\n".join(text[1:] for text in payload_lines) if payload_lines else None
    expected = metadata.get("has_payload")
    if expected is not None:
        raw = (payload or "").encode("utf-8", errors="surrogateescape")
        if hashlib.md5(raw, usedforsecurity=False).hexdigest() != expected:
            raise ImportProblem(f"{place}: {cut}: the payload is not the one that was written")
    kind = next((name for name in metadata if name not in CONTEXT), "empty record")
    return Record(line, header["date"], int(header["pid"]), kind, metadata, payload)


def epoch_ns(time: str, near_ns: int | None) -> int:
    """A record's time in ns since 1970. Year and time zone are those that bring it nearest to
    `near_ns`, the time of an event of the same log; without one, UTC in the current year."""
    near = datetime.now(UTC) if near_ns is None else datetime.fromtimestamp(near_ns / 1e9, UTC)
    moment = datetime.strptime(f"{near.year} {time}", "%Y %m%d %H:%M:%S.%f").replace(tzinfo=UTC)
    seconds = round(moment.timestamp() * 1e6) * 1000
    if near_ns is None:
        return seconds
    quarter = 15 * 60 * 10**9  # time zones differ from UTC by multiples of this
    return seconds + round((near_ns - seconds) / quarter) * quarter
