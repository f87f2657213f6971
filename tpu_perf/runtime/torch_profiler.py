"""torch.profiler sees the device: with ProfilerActivity.PrivateUse1 the programs that were
enqueued and the instructions that ran are among its events, tables and Chrome traces.

torch records the aten ops itself. Kineto takes device events only from a C++ plug-in, so ours are
added where torch hands out what it recorded.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.autograd.profiler import profile
from torch.autograd.profiler_util import FunctionEvent

from tpu_perf.recorder import Recorder, active
from tpu_perf.runtime.device_trace import KEY_DIGITS, DeviceEvent, DeviceTrace
from tpu_perf.runtime.program_cache import CACHE
from tpu_perf.runtime.torch_private import PRIVATEUSE1

_log = logging.getLogger("tpu_perf.profiler")
_DEVICE_PROCESS = "tpu:0"
_HOST_KINDS = ("execute", "compile", "flush", "transfer", "sync")


@dataclass(frozen=True, slots=True)
class _Span:
    """One event to add; times in ns since the epoch, as Kineto has them."""

    name: str
    start_ns: int
    end_ns: int
    lane: str
    on_device: bool
    arguments: dict[str, Any]


class _Session:
    """What is recorded beside one of torch's profiles."""

    def __init__(self) -> None:
        self.before = active.recorder
        # A recording of ours that is under way goes on undisturbed, and host spans are its own.
        self.recorder = Recorder() if self.before is None else None
        self.trace: DeviceTrace | None = DeviceTrace()
        try:
            self.trace.start()
        except Exception as error:  # XLA's profiler serves one at a time
            _log.warning("torch.profiler: no device events, XLA's profiler is in use: %s", error)
            self.trace = None
        if self.recorder is not None:
            active.recorder = self.recorder

    def end(self) -> list[_Span]:
        if self.recorder is not None:
            active.recorder = self.before
        events = [] if self.trace is None else self.trace.stop()
        epoch = time.time_ns() - time.perf_counter_ns()
        programs = {program.key[:KEY_DIGITS]: program for program in CACHE.programs}
        spans = [_of_device(event, programs, epoch) for event in events]
        return spans + ([] if self.recorder is None else _of_host(self.recorder, epoch))


def _of_device(event: DeviceEvent, programs: dict[str, Any], epoch: int) -> _Span:
    program = programs.get(event.key)
    name = "unknown program" if program is None else program.name
    arguments = {"program": name, "hlo_op": event.instruction}
    if program is not None:
        arguments["kind"] = program.kind
    return _Span(f"{name}: {event.instruction}", event.start_ns + epoch, event.end_ns + epoch,
                 event.lane, True, arguments)  # fmt: skip


def _of_host(recorder: Recorder, epoch: int) -> list[_Span]:
    names = {program.index: program.name for program in CACHE.programs}
    spans = []
    tables = recorder.drain()
    for kind in _HOST_KINDS:
        for row in tables[kind].to_pylist():
            what = names.get(row.get("program", -1)) or row.get("reason") or row.get("direction")
            spans.append(
                _Span(f"{kind} {what}" if what else kind, row["t_start_ns"] + epoch,
                      row["t_end_ns"] + epoch, "tpu runtime", False, {})
            )  # fmt: skip
    return spans


def install() -> None:
    """Teach torch.autograd.profiler.profile, which torch.profiler.profile is made of."""
    start: Callable[[Any], None] = profile._start_trace
    leave: Callable[..., Any] = profile.__exit__
    parse: Callable[..., list[Any]] = profile._parse_kineto_results
    export: Callable[..., Any] = profile.export_chrome_trace

    def started(self: Any) -> None:
        start(self)
        if self.use_device == "tpu":
            self.tpu_perf_session = _Session()

    def left(self: Any, *error: Any) -> Any:
        session = getattr(self, "tpu_perf_session", None)
        if session is None:
            return leave(self, *error)
        from tpu_perf.runtime.transfers import synchronize

        self.tpu_perf_session = None
        try:
            synchronize("torch.profiler")
        finally:
            self.tpu_perf_spans = session.end()
            result = leave(self, *error)
        return result

    def parsed(self: Any, results: Any, *rest: Any, **options: Any) -> list[Any]:
        events = parse(self, results, *rest, **options)
        origin = results.trace_start_ns()
        for span in getattr(self, "tpu_perf_spans", []):
            if span.on_device:
                events.append(_function_event(span, origin, len(events)))
        return events

    def exported(self: Any, path: str, *rest: Any, **options: Any) -> Any:
        result = export(self, path, *rest, **options)
        spans = getattr(self, "tpu_perf_spans", [])
        if spans:
            _add_to_trace(Path(path), spans)
        return result

    for name, function in (("_start_trace", started), ("__exit__", left),
                           ("_parse_kineto_results", parsed),
                           ("export_chrome_trace", exported)):  # fmt: skip
        setattr(profile, name, function)


def _function_event(span: _Span, origin_ns: int, number: int) -> Any:
    return FunctionEvent(
        id=-1 - number,
        name=span.name,
        thread=0,
        start_us=(span.start_ns - origin_ns) / 1000,
        end_us=(span.end_ns - origin_ns) / 1000,
        use_device="tpu",
        input_shapes=[],
        stack=[],
        device_type=PRIVATEUSE1,
        device_index=0,
        device_resource_id=span.lane,
    )


def _add_to_trace(path: Path, spans: list[_Span]) -> None:
    """Add the spans to a Chrome trace: the device as a process of its own, a lane a thread."""
    document = json.loads(path.read_text(encoding="utf-8"))
    base = int(document.get("baseTimeNanoseconds", 0))
    events = document["traceEvents"]
    host = next((e["pid"] for e in events if e.get("cat") == "cpu_op"), 0)
    events.append({"ph": "M", "name": "process_name", "pid": _DEVICE_PROCESS, "tid": 0,
                   "args": {"name": "device tpu"}})  # fmt: skip
    for span in spans:
        events.append(
            {
                "ph": "X",
                "cat": "kernel" if span.on_device else "privateuse1_runtime",
                "name": span.name,
                "pid": _DEVICE_PROCESS if span.on_device else host,
                "tid": span.lane,
                "ts": (span.start_ns - base) / 1000,
                "dur": (span.end_ns - span.start_ns) / 1000,
                "args": span.arguments,
            }
        )
    path.write_text(json.dumps(document), encoding="utf-8")
