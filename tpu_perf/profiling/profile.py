"""A recording of any job: steps come and go, and a run directory is left behind."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tpu_perf.ladder.environment import describe_environment
from tpu_perf.ladder.failure import from_exception
from tpu_perf.ladder.peak import chip_peak
from tpu_perf.profiling.schedule import Adaptive, Phases
from tpu_perf.profiling.step_finding import StepFinder
from tpu_perf.record.events import STEP_COLUMNS
from tpu_perf.record.plan import NOT_SAMPLED, Mode, OptimizerPlan, Plan, Unknown, WorkloadPlan
from tpu_perf.record.run import Facts, Run, Status
from tpu_perf.record.store import RunWriter, table_of_rows
from tpu_perf.recorder import Recorder, active
from tpu_perf.recorder.annotations import record_annotations
from tpu_perf.recorder.detailed import DetailedRecorder
from tpu_perf.recorder.sites import Sites

#: Steps recorded with the places of all ops, beside probes: what a whole step's capture needs.
_CAPTURING_STEPS = 2
_SETTLE_S = 1.0
_SAVE_EVENTS, _SAVE_AFTER_NS = 200_000, 20_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a job is recorded. `name` and `what` (kind and parameters of the workload) describe it
    in run.json. `fence`: wait for the device at the end of a step, so that its time is its own.
    `details`: look at the place of every op in all recorded steps, not only in a few. `ring`:
    keep only the newest so many events of each kind."""

    name: str
    what: WorkloadPlan
    phases: Phases = field(default_factory=Adaptive)
    steps: str = "auto"
    fence: bool = True
    details: bool = False
    ring: int | None = None
    facts: Facts = field(default_factory=Facts)


class Profile:
    """One recording, from `start` to `finish`. Methods are for the thread that runs the steps."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self.directory = directory
        self.settings = settings
        self.warnings: list[str] = []
        self._writer = RunWriter(directory)
        self._plain = Recorder(ring=settings.ring)
        self._detailed = DetailedRecorder(Sites(), ring=settings.ring)
        self._finder = StepFinder(settings.steps, self)
        self._around = contextlib.ExitStack()
        self._rows: list[tuple[Any, ...]] = []
        self._compiles: list[int] = []
        self._begun: tuple[int, int, str, int] | None = None  # index, start, phase, round
        self._misses = 0
        self._trace: Any = None
        self._spans: list[tuple[int, int, int]] = []
        self._device_ns: float | None = None
        self._saved_ns, self._saved_events = time.perf_counter_ns(), 0
        self._parameters: int | None = None
        self._pid = os.getpid()
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._finished = False
        #: Ctrl-C was pressed. Python drops a KeyboardInterrupt that comes up in a `__del__`, which
        #: device tensors have, so the end of a step looks again.
        self.interrupted = False

    def start(self) -> None:
        """Begin with the first step, which includes whatever comes before the first boundary."""
        self._around.enter_context(record_annotations())
        stop = threading.Event()
        settler = threading.Thread(target=self._settle, args=(stop,), daemon=True)
        settler.start()
        self._around.callback(settler.join)
        self._around.callback(stop.set)
        self._finder.install()
        self._around.callback(self._finder.remove)
        self.begin()

    def _settle(self, stop: threading.Event) -> None:
        """Turn rows into columns also where no step ends for long."""
        while not stop.wait(_SETTLE_S):
            for recorder in (self._plain, self._detailed):
                recorder.settle_large()

    # What steps are: called by the finder, or by the program itself.

    def step(self) -> None:
        """Say that a step is over, as with torch.profiler's `step()`."""
        self._finder.mark()

    def mark(self, begins: bool) -> None:
        """`tpu_perf.step` begins or ends."""
        self._finder.explicit(begins)

    def boundary(self) -> None:
        self.end()
        self.begin()

    def begin(self) -> None:
        if self._finished or os.getpid() != self._pid:
            return
        if not self._rows:
            self._begun = None  # what came before the first step of a program that marks its own
        if self._begun is not None:
            return
        index = len(self._rows)
        phase = self.settings.phases.next(self._compiles)
        recorder = self._recorder_of(phase.name, index)
        if phase.name == "probe":
            self._start_trace()
        elif self._trace is not None:
            self._stop_trace()
        if recorder is not None:
            recorder.begin_step(index)
        self._misses = _misses()
        active.recorder = recorder
        self._begun = (index, time.perf_counter_ns(), phase.name, phase.round)

    def end(self) -> None:
        if self._begun is None or self._finished or os.getpid() != self._pid:
            return
        index, start, phase, number = self._begun
        dispatched = time.perf_counter_ns()
        if self.settings.fence:
            _fence()
        ended = time.perf_counter_ns()
        self._begun = None
        recorder, active.recorder = active.recorder, None
        if recorder is not None:
            recorder.end_step()
        compiles = _misses() - self._misses
        nothing = float("nan")
        self._compiles.append(compiles)
        self._rows.append(
            (index, phase, number, start, dispatched, ended, compiles, nothing, nothing)
        )
        if phase == "probe":
            self._spans.append((index, start, ended))
        self._save_if_due()
        if self.interrupted:
            raise KeyboardInterrupt
        active.recorder = self._recorder_of("between", index)

    def _recorder_of(self, phase: str, index: int) -> Recorder | None:
        if phase in ("wait", "bare"):
            return None
        placed = self.settings.details or phase == "probe" or index < _CAPTURING_STEPS
        return self._detailed if placed else self._plain

    # The device, watched in probe steps.

    def _start_trace(self) -> None:
        if self._trace is not None:
            return
        from tpu_perf.runtime.device_trace import DeviceTrace

        trace = DeviceTrace()
        try:
            trace.start()
        except Exception as error:  # the program has a trace of its own under way
            self._warn(f"XLA's profiler could not be started: {error}")
        else:
            self._trace = trace

    def _stop_trace(self) -> None:
        from tpu_perf.runtime.device_lane import covered
        from tpu_perf.runtime.inside_view import add_device_events

        trace, self._trace = self._trace, None
        try:
            events = trace.stop()
        except Exception as error:
            self._warn(f"XLA's profiler could not be stopped: {error}")
            return
        add_device_events(self._detailed, events, self._spans)
        inside = [
            (max(event.start_ns, start), min(event.end_ns, end))
            for event in events
            for _, start, end in self._spans
            if event.start_ns < end and event.end_ns > start
        ]
        if inside:
            self._device_ns = covered(inside) / len(self._spans)
        self._write_details()

    # What is left behind.

    def _save_if_due(self) -> None:
        pending = sum(r.event_count("dispatch") for r in (self._plain, self._detailed))
        now = time.perf_counter_ns()
        if self.settings.ring is None and (
            now - self._saved_ns > _SAVE_AFTER_NS or pending - self._saved_events > _SAVE_EVENTS
        ):
            self._saved_ns, self._saved_events = now, pending
            self._save()

    def _save(self) -> None:
        for recorder in (self._plain, self._detailed):
            self._writer.write_events(recorder.drain())
        self._writer.write_steps(table_of_rows(STEP_COLUMNS, self._rows))

    def _write_details(self) -> None:
        """Tables of what was compiled so far. What buffers are is asked once, at the end of a
        step: later the job may have let its model go."""
        if not _loaded():
            self._writer.write_detail("sites", self._detailed.sites.table())
            return
        from tpu_perf.runtime.buffer_labels import parameter_count
        from tpu_perf.runtime.inside_view import labels_of_process, program_details
        from tpu_perf.runtime.program_cache import CACHE
        from tpu_perf.runtime.program_files import program_table

        self._writer.write_programs(program_table(CACHE.programs))
        for name, table in program_details(self._detailed.sites).items():
            self._writer.write_detail(name, table)
        if self._parameters is None:
            self._parameters = parameter_count()
            self._writer.write_detail("buffer_labels", labels_of_process())

    def fail(self, error: BaseException) -> Path:
        """`finish` after the job ended by an exception."""
        step = f"in step {len(self._rows)}"
        if isinstance(error, KeyboardInterrupt):
            return self.finish("failed", f"interrupted {step}")
        if isinstance(error, SystemExit):
            if error.code in (None, 0):
                return self.finish()
            return self.finish("failed", f"the job exited with code {error.code} {step}")
        failure = from_exception(error)
        status = "failed" if failure.status == "skipped" else failure.status
        return self.finish(status, f"{failure.reason}, {step}")

    def finish(self, status: Status = "ok", reason: str | None = None) -> Path:
        """End the recording and write the run; a step under way is not one. Returns the run
        directory."""
        if self._finished:
            return self.directory
        self._stop_recording(whole=status == "ok")
        self._finished = True
        self._save()
        self._write_details()
        facts, mode, kind = self._facts(), "unknown", "unknown"
        if _loaded():
            from tpu_perf.runtime import jax_private
            from tpu_perf.runtime.program_cache import CACHE
            from tpu_perf.runtime.program_files import write_program_files

            write_program_files(self._writer.partial / "programs", CACHE.programs,
                                CACHE.compiler_options, buffers=True)  # fmt: skip
            kind, mode = str(jax_private.device().device_kind), _mode()
        else:
            self._warn(
                'nothing ran on device "tpu": the job uses another device (--device tpu moves it)'
            )
        run = Run(
            plan=self._plan(mode),
            environment=describe_environment(kind, 1),
            status=status,
            reason=reason,
            facts=_with_peak(facts, kind),
            warnings=tuple(self.warnings),
            started_at=self._started_at,
        )
        return self._writer.finish(run)

    def _stop_recording(self, whole: bool) -> None:
        if whole and self._begun is not None and not self._rows:
            self.end()  # no boundary was seen: everything is one step
            self._warn(
                "no step was found: the job is recorded as one step, which includes compiling. "
                "Name a sign of its steps with --steps, or mark them with tpu_perf.step"
            )
        if self._begun is not None:
            active.recorder, self._begun = None, None
        if self._trace is not None:
            self._stop_trace()
        active.recorder = None
        self._around.close()

    def _facts(self) -> Facts:
        peak = None
        notes = {"steps": f"found by {self._finder.found}" if self._rows else "none"}
        if _loaded():
            from tpu_perf.runtime.host_fallback import uses_note
            from tpu_perf.runtime.memory import MEMORY

            peak = MEMORY.peak
            on_host = uses_note()
            if on_host is not None:
                notes["host_fallback"] = on_host
        notes["fence"] = (
            "each step ends when the device has nothing left to do"
            if self.settings.fence
            else "a step ends when its Python does: the device may still be at work"
        )
        dropped = self._plain.dropped_events + self._detailed.dropped_events
        return replace(
            self.settings.facts,
            parameters=self._parameters,
            hbm_peak_bytes=peak,
            device_time_per_step_ns=self._device_ns,
            lane_note="no step ran under XLA's profiler"
            if self._device_ns is None
            else f"device time: at least one XLA op ran, in {len(self._spans)} steps under XLA's "
            "profiler",
            dropped_events=dropped,
            recorder_ns_per_event=self._plain.cost_per_event_ns(),
            source={**self.settings.facts.source, **notes},
        )

    def _plan(self, mode: str) -> Plan:
        known: Mapping[str, Mode | Unknown] = {
            "DEFER_NEVER": "strict",
            "DEFER_NEVER_AND_LAUNCH_BLOCKING": "debug",
            "DEFER_AND_FUSE": "defer_and_fuse",
        }
        return Plan(
            ladder="profile",
            rung=self.settings.name,
            workload=self.settings.what,
            optimizer=OptimizerPlan(name="unknown"),
            mode=known.get(mode, "unknown"),
            precision="unknown",
            sampling=NOT_SAMPLED,
        )

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def _loaded() -> bool:
    """Whether the device has been used in this process."""
    device = sys.modules.get("tpu_perf.runtime.device")
    return device is not None and bool(device.is_loaded())


def _misses() -> int:
    cache = sys.modules.get("tpu_perf.runtime.program_cache")
    return 0 if cache is None else int(cache.CACHE.misses)


def _fence() -> None:
    if _loaded():
        from tpu_perf.runtime.transfers import synchronize

        synchronize()


def _mode() -> str:
    from tpu_perf.runtime.modes import STATE

    return STATE.mode.name


def _with_peak(facts: Facts, kind: str) -> Facts:
    """A TPU's peak from the chip table, unless the caller measured one."""
    peak = chip_peak(kind, "bf16_autocast") if facts.peak_flops_per_s is None else None
    if peak is None:
        return facts
    return replace(facts, peak_flops_per_s=peak.flops_per_s, peak_source=peak.source,
                   peak_provenance=peak.provenance)  # fmt: skip
