"""Importer `chrome_trace`: what torch.profiler exports, as JSON or gzipped JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from tpu_perf.errors import ImportProblem
from tpu_perf.importers.captured_files import beginning, json_document
from tpu_perf.importers.interface import IMPORTERS, Imported, Importer
from tpu_perf.importers.op_contexts import Sites, Span
from tpu_perf.importers.step_numbers import StepSpan, in_steps, step_table
from tpu_perf.record.details import CALL_COLUMNS
from tpu_perf.record.events import ANNOTATION, DEVICE, DISPATCH, MEMORY
from tpu_perf.record.store import RunWriter, table_of_rows

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
STEP_PREFIX = "ProfilerStep#"
_NAMES = {
    "float": "float32",
    "double": "float64",
    "long int": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}


def recognises(path: Path) -> bool:
    if not path.is_file():
        return False
    head = beginning(path).lstrip()
    return (head.startswith(b"{") and b'"traceEvents"' in head) or (
        head.startswith(b"[") and b'"ph"' in head
    )


def read(path: Path, writer: RunWriter) -> Imported:
    """Read a trace into the writer: cpu_op becomes dispatch, ProfilerStep#N a step (phase probe,
    since a profiler was on), kernels and copies on a device become device events by stream,
    [memory] becomes memory, everything else an annotation whose kind is its category."""
    document = json_document(path)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise ImportProblem(f"{path} is no trace: it has no list of traceEvents")
    header: dict[str, Any] = document if isinstance(document, dict) else {}
    capture = _Capture(path)
    for number, event in enumerate(events):
        capture.add(number, event)
    return capture.write(writer, header)


@dataclass(slots=True)
class _Capture:
    """The events of a trace by what becomes of them."""

    path: Path
    threads: dict[tuple[Any, Any], list[Span]] = field(default_factory=dict)
    device: list[tuple[int, int, str, str]] = field(default_factory=list)
    memory: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    begun: dict[tuple[Any, ...], list[dict[str, Any]]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add(self, number: int, event: Any) -> None:
        if not isinstance(event, dict) or not isinstance(event.get("ph"), str):
            raise ImportProblem(f"{self.path}: traceEvents[{number}] is no event: {event!r:.80}")
        kind = event["ph"]
        if kind == "M":
            self.counts["names of processes and threads"] += 1
            return
        start = self._nanoseconds(number, event, "ts")
        if kind in ("B", "E"):
            self._pair(kind, start, event)
            return
        end = start
        if kind == "X" and "dur" in event:
            end = start + self._nanoseconds(number, event, "dur", start=event["ts"])
        elif kind == "X":
            self.counts["spans without a duration, kept as moments"] += 1
        if end < start:
            self.counts["spans with a negative duration, kept as moments"] += 1
            end = start
        self._sort(start, end, event)

    def _nanoseconds(self, number: int, event: Any, name: str, start: Any = 0) -> int:
        """A time of an event in ns. A duration is what its end, rounded, is after its start."""
        value = event.get(name)
        if isinstance(value, bool) or not isinstance(value, int | Decimal) or not _finite(value):
            raise ImportProblem(f"{self.path}: traceEvents[{number}] has no number as its {name}")
        if name == "dur":
            return round((Decimal(start) + value) * 1000) - round(Decimal(start) * 1000)
        return round(Decimal(value) * 1000)

    def _pair(self, kind: str, time: int, event: dict[str, Any]) -> None:
        open_here = self.begun.setdefault((event.get("pid"), event.get("tid")), [])
        if kind == "B":
            open_here.append(event | {"_start": time})
        elif open_here:
            begin = open_here.pop()
            self._sort(begin["_start"], max(time, begin["_start"]), begin)
        else:
            self.counts["ends without a begin, kept as moments"] += 1
            self._sort(time, time, event)

    def _sort(self, start: int, end: int, event: dict[str, Any]) -> None:
        name = str(event.get("name", ""))
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        category = str(event.get("cat") or f"phase {event['ph']}")
        if category in DEVICE_CATEGORIES:
            device = args.get("device", event.get("pid"))
            lane = f"device {device} stream {args.get('stream', event.get('tid'))}"
            self.device.append((start, end, name, lane))
            self.counts[f"device events ({category})"] += 1
            return
        if name == "[memory]" and isinstance(args.get("Bytes"), int):
            place = f"type {args.get('Device Type')} number {args.get('Device Id')}"
            total = args.get("Total Allocated")
            if isinstance(total, int):
                row = (start, args["Bytes"], total, int(args.get("Addr") or 0), place)
                self.memory.append(row)
                self.counts["memory events"] += 1
                return
        if event["ph"] == "C":
            name = f"{name} {json.dumps(args, default=str)}"
        thread = (event.get("pid"), event.get("tid"))
        self.threads.setdefault(thread, []).append(Span(start, end, category, name, args))

    def write(self, writer: RunWriter, header: dict[str, Any]) -> Imported:
        for unended in self.begun.values():
            for event in unended:
                self.counts["begins without an end, kept as moments"] += 1
                self._sort(event["_start"], event["_start"], event)
        if not self.threads and not self.device and not self.memory:
            raise ImportProblem(f"{self.path} holds no event: its list of traceEvents is empty")
        steps = self._steps()
        dispatch, annotations = self._host(writer, steps)
        memory = self._memory_of_one_device(annotations)
        device = sorted(self.device)
        tables = {
            "dispatch": (DISPATCH, dispatch, 4),
            "annotation": (ANNOTATION, annotations, 5),
            "memory": (MEMORY, memory, 3),
            "device": (
                DEVICE,
                [(start, end, -1, name, lane, -1) for start, end, name, lane in device],
                5,
            ),
        }
        writer.write_events(
            {
                name: table_of_rows(kind.columns, in_steps(rows, steps, column))
                for name, (kind, rows, column) in tables.items()
            }
        )
        writer.write_steps(step_table(steps))
        if steps:
            self.notes.append(
                "steps ran under torch's profiler and were not fenced: their phase is probe, and "
                "their times are no step times"
            )
        devices = header.get("deviceProperties")
        devices = devices if isinstance(devices, list) else []
        kinds = [str(device.get("name")) for device in devices if isinstance(device, dict)]
        return Imported(
            source=f"Chrome trace of torch.profiler, {len(self.threads):,} host threads",
            device_kind=kinds[0] if kinds else ("cpu" if not self.device else "unknown"),
            device_count=max(1, len(kinds)),
            hostname=str(header.get("host_name") or "unknown"),
            versions={
                name.removesuffix("_version"): str(header[name])
                for name in ("cuda_runtime_version", "cuda_driver_version")
                if name in header
            },
            counts=dict(self.counts),
            notes=tuple(self.notes),
        )

    def _steps(self) -> list[StepSpan]:
        found: dict[int, StepSpan] = {}
        for spans in self.threads.values():
            for span in spans:
                number = span.name.removeprefix(STEP_PREFIX)
                is_step = span.name.startswith(STEP_PREFIX) and number.isdigit()
                if is_step and span.category == "user_annotation" and int(number) not in found:
                    found[int(number)] = StepSpan(int(number), span.start_ns, span.end_ns)
                    self.counts["steps"] += 1
        return sorted(found.values(), key=lambda step: step.start_ns)

    def _host(
        self, writer: RunWriter, steps: list[StepSpan]
    ) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Rows of dispatch and annotation; writes sites and calls."""
        as_steps = {(step.start_ns, f"{STEP_PREFIX}{step.number}") for step in steps}
        dispatch: list[tuple[Any, ...]] = []
        annotations: list[tuple[Any, ...]] = []
        sites, calls = Sites(), _Calls()
        for number, thread in enumerate(self._forwards_first()):
            spans = sorted(self.threads[thread], key=lambda span: (span.start_ns, -span.end_ns))
            places = iter(sites.of_thread(spans))
            for span in spans:
                times = (span.start_ns, span.end_ns)
                if span.category == "cpu_op":
                    self.counts["ops"] += 1
                    calls.add(span)
                    dispatch.append((*times, span.name, -1, -1, next(places), number))
                elif span.category != "user_annotation" or (times[0], span.name) not in as_steps:
                    name, kind = self._said(span)
                    annotations.append((*times, name, kind, number, -1))
        writer.write_detail("sites", sites.table())
        writer.write_detail("calls", table_of_rows(CALL_COLUMNS, calls.rows))
        dispatch.sort(key=lambda row: (row[0], -row[1]))
        annotations.sort(key=lambda row: (row[0], -row[1]))
        return dispatch, annotations

    def _forwards_first(self) -> list[tuple[Any, Any]]:
        """Threads in the order in which they were met, those that only run backwards last."""

        def backward(thread: tuple[Any, Any]) -> bool:
            ops = [span for span in self.threads[thread] if span.category == "cpu_op"]
            return bool(ops) and min(ops, key=lambda span: span.start_ns).name.startswith(
                "autograd::engine"
            )

        return sorted(self.threads, key=backward)

    def _said(self, span: Span) -> tuple[str, str]:
        """Name and kind of an annotation; a category that we do not know is the kind."""
        if span.category == "user_annotation":
            self.counts["annotations of the user"] += 1
            return span.name, "optimizer" if span.name.startswith("Optimizer.") else "user"
        if span.category == "python_function" and span.name.startswith("nn.Module: "):
            self.counts["calls of modules"] += 1
            return span.name.removeprefix("nn.Module: "), "module"
        self.counts[f"kept as annotations of kind {span.category!r}"] += 1
        return span.name, span.category

    def _memory_of_one_device(self, annotations: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Rows of memory of the device with most events, the host only where there is no other;
        events of others become annotations, because their totals are of another memory."""
        places = Counter(place for *_, place in self.memory)
        if not places:
            return []
        chosen = max(places, key=lambda place: (not place.startswith("type 0 "), places[place]))
        self.notes.append(f"memory events are those of device {chosen}, since the trace began")
        for time, delta, total, _, place in self.memory:
            if place != chosen:
                text = f"{delta:+} bytes, {total} in all"
                annotations.append((time, time, text, f"memory of device {place}", -1, -1))
                self.counts[f"kept as annotations: memory of device {place}"] += 1
        annotations.sort(key=lambda row: (row[0], -row[1]))
        rows = [row for row in self.memory if row[4] == chosen]
        return [(row[0], row[1], row[2], -1, row[3], -1) for row in sorted(rows)]


def _finite(value: int | Decimal) -> bool:
    return isinstance(value, int) or value.is_finite()


class _Calls:
    """Ops on arguments of one geometry, where input shapes were recorded."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self._known: set[tuple[str, str]] = set()

    def add(self, span: Span) -> None:
        shapes = span.args.get("Input Dims", span.args.get("Input dims"))
        types = span.args.get("Input type")
        if not isinstance(shapes, list) or not isinstance(types, list):
            return
        concrete = span.args.get("Concrete Inputs")
        values = concrete if isinstance(concrete, list) else []
        arguments = json.dumps(
            [
                _argument(shape, kind, values[at] if at < len(values) else "")
                for at, (shape, kind) in enumerate(zip(shapes, types, strict=False))
            ],
            default=str,
        )
        key = (span.name, arguments)
        if key not in self._known:
            self._known.add(key)
            # Names, results and bytes are not in the trace.
            self.rows.append((len(self.rows), span.name, "[]", arguments, "[]", None, None))


def _argument(shape: Any, kind: Any, value: Any) -> Any:
    if kind in _NAMES or (isinstance(kind, str) and kind.startswith("c10::")):
        return {"dtype": _NAMES.get(kind, kind), "shape": shape}
    if kind == "TensorList" and isinstance(shape, list):
        return [{"dtype": "unknown", "shape": part} for part in shape]
    return value if value != "" else None


IMPORTERS.add(
    "chrome_trace",
    Importer(
        name="chrome_trace",
        summary="Chrome trace of torch.profiler (JSON, gzipped or not)",
        recognises=recognises,
        read=read,
    ),
)
