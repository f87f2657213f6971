"""Importer `torch_trace`: the structured log that TORCH_TRACE makes torch and TorchTPU write."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from tpu_perf.errors import ImportProblem
from tpu_perf.importers.captured_files import beginning
from tpu_perf.importers.interface import IMPORTERS, Imported, Importer
from tpu_perf.importers.structured_log import Record, epoch_ns, looks_like_one, records
from tpu_perf.record.eager_programs import Programs
from tpu_perf.record.events import ANNOTATION, COMPILE, EXECUTE, FLUSH, EventKind, Tier
from tpu_perf.record.store import RunWriter, table_of_rows

_EAGER = "torchtpu_eager"
_METRICS = ("compilation_metrics", "bwd_compilation_metrics")


def log_files(path: Path) -> list[Path]:
    """The structured logs of a TORCH_TRACE directory, or the file itself."""
    if path.is_file():
        return [path]
    return sorted(
        file
        for file in path.glob("*.log*")
        if file.is_file() and (file.stat().st_size == 0 or looks_like_one(beginning(file)))
    )


def recognises(path: Path) -> bool:
    if path.is_dir():
        return any(looks_like_one(beginning(file)) for file in log_files(path))
    return path.is_file() and looks_like_one(beginning(path))


def read(path: Path, writer: RunWriter) -> Imported:
    """Read one process's log. Each batch of TorchTPU's eager modes becomes a flush with its
    reason, an execute with the cache's answer, and on a miss a compile; its StableHLO a program.
    Each compilation of torch.compile becomes a compile event. All else is kept as annotations."""
    files = log_files(path)
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ImportProblem(
            f"{path} holds {len(files)} logs, one a process: {names}",
            hint="name one of them; processes do not share a timeline",
        )
    log = _Log(files[0])
    for record in records(files[0]):
        log.add(record)
    return log.write(writer)


@dataclass(slots=True)
class _Batch:
    """A chromium event of TorchTPU's eager modes with the artifacts that follow it."""

    start_ns: int
    end_ns: int
    name: str
    args: dict[str, Any]
    graph: str = ""
    stablehlo: str = ""


@dataclass(slots=True)
class _Log:
    path: Path
    batches: list[_Batch] = field(default_factory=list)
    compiles: list[tuple[Any, ...]] = field(default_factory=list)
    annotations: list[tuple[Any, ...]] = field(default_factory=list)
    moments: list[Record] = field(default_factory=list)
    begun: dict[tuple[Any, ...], list[tuple[int, str, str]]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    torch_version: str | None = None
    near_ns: int | None = None
    pid: int = -1

    def add(self, record: Record) -> None:
        self.pid = record.pid
        if record.kind == "chromium_event":
            self._chromium(record)
        elif record.kind == "artifact" and isinstance(record.value, dict):
            self._artifact(record, record.value)
        elif record.kind in _METRICS and isinstance(record.value, dict):
            self._metrics(record, record.value)
        else:
            self._keep(record)

    def _keep(self, record: Record) -> None:
        """What has no table of its own: a moment on the record's own clock."""
        self.moments.append(record)
        self.counts[f"kept as annotations of kind {record.kind!r}"] += 1

    def _chromium(self, record: Record) -> None:
        try:
            event = json.loads(record.payload or "", parse_float=Decimal)
            start = round(Decimal(event["ts"]) * 1000)
            phase, name = str(event["ph"]), str(event["name"])
        except (ValueError, KeyError, TypeError, ArithmeticError) as error:
            raise ImportProblem(
                f"{self.path}, line {record.line}: no chromium event: {error!r}"
            ) from None
        self.near_ns = start if self.near_ns is None else self.near_ns
        category = str(event.get("cat", ""))
        args = event.get("args") if isinstance(event.get("args"), dict) else {}
        if category == _EAGER and phase == "X":
            end = round((Decimal(event["ts"]) + Decimal(event.get("dur", 0))) * 1000)
            self.batches.append(_Batch(start, max(start, end), name, args))
            self.counts["batches of TorchTPU's eager modes"] += 1
            return
        self.counts[f"chromium events ({category or 'no category'}, {phase})"] += 1
        key = (event.get("pid"), event.get("tid"), name)
        if phase == "B":
            self.begun.setdefault(key, []).append((start, name, category))
        elif phase == "E" and self.begun.get(key):
            began, _, _ = self.begun[key].pop()
            self.annotations.append((began, max(start, began), name, category, -1, -1))
        else:
            length = round(Decimal(event.get("dur", 0)) * 1000) if phase == "X" else 0
            self.annotations.append((start, start + max(0, length), name, category, -1, -1))

    def _artifact(self, record: Record, artifact: dict[str, Any]) -> None:
        name = artifact.get("name")
        if name in ("torchtpu_eager_aten_graph", "torchtpu_eager_stablehlo"):
            batch = self.batches[-1] if self.batches else None
            if batch is not None and batch.name == artifact.get("op_name"):
                text = (record.payload or "").strip("\n")
                if name == "torchtpu_eager_aten_graph":
                    batch.graph = text
                else:
                    batch.stablehlo = text
                self.counts[f"artifacts {name}" + ("" if text else ", empty")] += 1
                return
        if name == "torch_version":
            try:
                self.torch_version = str(json.loads(record.payload or "")["pytorch_version"])
            except (ValueError, KeyError, TypeError):
                self.counts["unreadable torch_version"] += 1
        self._keep(record)

    def _metrics(self, record: Record, metrics: dict[str, Any]) -> None:
        """A compilation of torch.compile. Where its times are missing the record is kept only."""
        start = metrics.get("start_time")
        seconds = metrics.get("entire_frame_compile_time_s")
        if seconds is None and isinstance(metrics.get("duration_us"), int):
            seconds = metrics["duration_us"] / 1e6
        if not isinstance(start, int | float) or not isinstance(seconds, int | float):
            self._keep(record)
            return
        start_ns, length = round(start * 1e9), round(seconds * 1e9)
        backend = metrics.get("backend_compile_time_s")
        backend_ns = min(length, round(backend * 1e9)) if isinstance(backend, int | float) else 0
        source = f"{metrics.get('co_filename')}:{metrics.get('co_firstlineno')}"
        differed = str(metrics.get("recompile_reason") or "")
        times = (start_ns, start_ns + length, -1, int(Tier.COMPILED))
        split = (length - backend_ns, backend_ns)
        known = source if metrics.get("co_filename") else ""
        self.compiles.append((*times, *split, differed, known, -1))
        self.near_ns = start_ns if self.near_ns is None else self.near_ns
        self.counts[f"compilations ({record.kind})"] += 1

    def write(self, writer: RunWriter) -> Imported:
        notes = []
        programs = Programs()
        execute, flush = [], []
        unnamed = failed = 0
        for batch in self.batches:
            hit = batch.args.get("cache_hit") is True
            first_op = batch.name.removeprefix(f"{_EAGER}/")
            if batch.stablehlo:
                program = programs.add(first_op, batch.stablehlo, batch.graph)
                number, ops = program.number, program.ops or -1
            else:
                number, ops = programs.of_hit(first_op), -1
                unnamed += number < 0
            times = (batch.start_ns, batch.end_ns)
            tier = int(Tier.MEMORY if hit else Tier.COMPILED)
            flush.append((*times, str(batch.args.get("reason") or "unknown"), ops, number, -1))
            if not hit:
                length = batch.end_ns - batch.start_ns
                self.compiles.append((*times, number, tier, 0, length, "", "", -1))
            if batch.args.get("compile_failed") is True:
                failed += 1
            else:
                execute.append((*times, number, tier, -1))
        notes += self._batch_notes(unnamed, failed)
        for spans in self.begun.values():
            for start, name, category in spans:
                self.annotations.append((start, start, name, category, -1, -1))
                self.counts["chromium begins without an end, kept as moments"] += 1
        for record in self.moments:
            time = epoch_ns(record.time, self.near_ns)
            self.annotations.append((time, time, _title(record), record.kind, -1, -1))
        rows: dict[str, tuple[EventKind, list[tuple[Any, ...]]]] = {
            "execute": (EXECUTE, execute),
            "flush": (FLUSH, flush),
            "compile": (COMPILE, self.compiles),
            "annotation": (ANNOTATION, self.annotations),
        }
        if not any(events for _, events in rows.values()):
            raise ImportProblem(f"{self.path} holds no record")
        writer.write_events(
            {
                name: table_of_rows(kind.columns, sorted(events, key=lambda row: (row[0], -row[1])))
                for name, (kind, events) in rows.items()
            }
        )
        programs.write(writer)
        eager = bool(self.batches)
        return Imported(
            source=f"TORCH_TRACE log of {'TorchTPU eager' if eager else 'torch'}, "
            f"process {self.pid}",
            device_kind="tpu (kind not in the log)" if eager else "unknown",
            device_count=1,
            hostname="unknown",
            versions={"torch": self.torch_version} if self.torch_version else {},
            counts=dict(self.counts),
            notes=tuple(notes),
        )

    def _batch_notes(self, unnamed: int, failed: int) -> list[str]:
        if not self.batches:
            return []
        notes = [
            "the log has no steps; a batch's time is the host's and on a miss includes compiling, "
            "which the log does not tell apart from tracing and executing",
            "events that TorchTPU's log buffer dropped (beyond 10,000 between two flushes) are "
            "not marked in the log, so their number is unknown",
        ]
        if unnamed:
            notes.append(
                f"{unnamed:,} of {len(self.batches):,} batches hit the cache under a name that "
                "several programs, or none, begin with: their program is unknown"
            )
        if failed:
            notes.append(f"{failed:,} batches failed to compile")
        return notes


def _title(record: Record) -> str:
    value = record.value
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return str(value["name"])
    return record.kind


IMPORTERS.add(
    "torch_trace",
    Importer(
        name="torch_trace",
        summary="TORCH_TRACE log of torch or TorchTPU (a file, or a directory with one)",
        recognises=recognises,
        read=read,
    ),
)
