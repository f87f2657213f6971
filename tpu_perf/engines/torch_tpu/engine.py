"""Engine `torch_tpu`: Google's TorchTPU, measured on a TPU, or over a CPU plugin without one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tpu_perf.engines.interface import (
    LaneTimes,
    RungUnavailable,
    Span,
    StepOutcome,
    StepRow,
    raise_if_out_of_memory,
)
from tpu_perf.engines.torch_tpu import wheel
from tpu_perf.engines.torch_tpu.cpu_plugin import CUMSUM, LABEL, replace_cumsum, set_environment
from tpu_perf.engines.torch_tpu.environment import on_cpu
from tpu_perf.engines.torch_tpu.recording import Recording
from tpu_perf.engines.torch_tpu.traced_run import run_traced
from tpu_perf.engines.torch_tpu.training import EAGER_MODES, Result, Training, build_training
from tpu_perf.errors import TpuPerfError
from tpu_perf.record.events import Tier
from tpu_perf.record.plan import Plan
from tpu_perf.recorder import active
from tpu_perf.workloads.interface import BuiltWorkload

if TYPE_CHECKING:
    import pyarrow as pa

    from tpu_perf.recorder.detailed import DetailedRecorder


class TorchTpuSession:
    """A rung on TorchTPU's device "tpu"."""

    def __init__(self, workload: BuiltWorkload, training: Training, *, cpu: bool) -> None:
        self._workload = workload
        self._training = training
        self._cpu = cpu
        self._last: Result | None = None
        self._dynamo = _DynamoTime()
        self._known_misses = 0
        self._compiled: Counter[int] = Counter()  # compile times of the cache's entries
        self.recording: Recording | None = None
        self.notes_found: dict[str, str] = dict(training.notes)

    def step(self, index: int) -> None:
        batch = {name: value.to("tpu") for name, value in self._workload.batch(index).items()}
        try:
            self._last = self._training.step(batch)
        except RuntimeError as error:
            raise_if_out_of_memory(error)
            raise

    def fence(self) -> None:
        import torch

        try:
            torch.accelerator.synchronize()
        except RuntimeError as error:
            raise_if_out_of_memory(error)
            raise
        self._note_compiles()

    def _note_compiles(self) -> None:
        """Compile events for what the step compiled. TorchTPU says how long, not when or what:
        an event ends where it was noticed, at the fence."""
        misses = wheel.cache_misses()
        if misses == self._known_misses:
            return
        self._known_misses = misses
        found = Counter(entry.compile_us for entry in wheel.cache_stats().entries)
        new, self._compiled = found - self._compiled, found
        recorder = active.recorder
        if recorder is None:
            return
        now, tier = time.perf_counter_ns(), int(Tier.COMPILED)
        for compile_us in sorted(new.elements(), reverse=True):
            # Dynamo traced for the largest, or for several of which it is one.
            traced, took = self._dynamo.take(), 1000 * compile_us
            source = "torch.compile" if traced else ""
            times = (now - took - traced, now)
            recorder.compile((*times, -1, tier, traced, took, "", source, recorder.step))

    def outcome(self) -> StepOutcome:
        return StepOutcome.read(self._last)

    def compile_count(self) -> int:
        return wheel.cache_misses()  # compiled graphs are among them

    def measure_lanes(self, first_index: int, steps: int) -> LaneTimes:
        dispatch: list[int] = []
        for i in range(steps + 1):
            start = time.perf_counter_ns()
            self.step(first_index + i)
            dispatch.append(time.perf_counter_ns() - start)
            self.fence()
        return LaneTimes(
            host_ns=median(dispatch[1:]),  # the first step after a pause finds cold caches
            device_ns=None,
            note=f"host time: the step function in {steps} steps; a CPU plugin reports no device "
            "time",
        )

    def look_inside(
        self, steps: Callable[[], Sequence[Span]], recorder: DetailedRecorder
    ) -> Mapping[str, pa.Table]:
        return {} if self.recording is None else self.recording.details()

    def recorded_apart(self, first_index: int, recorder: DetailedRecorder) -> Sequence[StepRow]:
        if self.recording is None:
            return []
        return self.recording.deliver(first_index, recorder)

    def programs(self) -> pa.Table | None:
        return None if self.recording is None else self.recording.programs()

    def write_programs(self, directory: Path) -> None:
        if self.recording is not None:
            self.recording.write_programs(directory)

    def peak_bytes(self) -> int | None:
        import torch

        return None if self._cpu else int(torch.accelerator.max_memory_allocated())

    def notes(self) -> Mapping[str, str]:
        stats = wheel.cache_stats()
        notes = dict(self.notes_found)
        notes["torch_tpu_cache"] = (
            f"{stats.requests:,} requests, {stats.hits:,} hits, {stats.compilations:,} "
            f"compilations in {stats.compile_ns / 1e9:.2f} s, by TorchTPU's own statistics of the "
            "measured process"
        )
        if self.recording is not None:
            notes |= self.recording.notes()
        return notes


class TorchTpuEngine:
    """The registry's entry."""

    modes = tuple(EAGER_MODES)

    def open(self, plan: Plan, workload: BuiltWorkload) -> TorchTpuSession:
        wheel.check_version()
        trace, problem = None, None
        try:
            # First, and to its end: a TPU belongs to one process at a time.
            trace = run_traced(plan, plan.sampling.timeout_s)
        except TpuPerfError as error:
            problem = str(error)
        session = open_session(plan, workload)
        if trace is not None:
            session.recording = Recording(trace)
        if problem is not None:
            session.notes_found["torch_tpu_trace"] = f"no batches and programs: {problem}"
        return session

    def device(self) -> tuple[str, int]:
        kind = str(wheel.device_attributes().get("device_kind", "unknown"))
        return kind, 1


def open_session(plan: Plan, workload: BuiltWorkload, *, texts: bool = False) -> TorchTpuSession:
    """Load the wheel and set the plan's mode. `texts` keeps the StableHLO of compiled graphs."""
    cpu = on_cpu(plan)
    plugin, can_compile = set_environment() if cpu else (None, True)
    wheel.load(plugin)
    import torch

    if not can_compile and plan.mode in ("compile", "whole_step"):
        raise RungUnavailable(
            "compiled programs over the CPU plugin need a small PJRT shim, and there is no C++ "
            "compiler to build it with (install g++, or set CXX)"
        )
    torch.manual_seed(plan.seed)
    options: dict[str, Any] = {}
    if texts or plan.cache_dir is None:
        options["serializable"] = False  # AOTAutograd's cache on disk would answer otherwise
    if texts:
        options["debug_callback"] = lambda _: None  # makes graphs keep their text
    training = build_training(plan, workload, on_cpu=cpu, compile_options=options)
    if cpu:
        replace_cumsum()
        training.notes |= {"torch_tpu_device": LABEL, "cumsum": CUMSUM}
    return TorchTpuSession(workload, training, cpu=cpu)


class _DynamoTime:
    """Nanoseconds in which Dynamo and AOTAutograd traced, without XLA's own compiling."""

    def __init__(self) -> None:
        from torch._dynamo import callback

        self._total_ns = self._began_ns = self._compiled_ns = 0
        callback.callback_handler.register_start_callback(self._start)
        callback.callback_handler.register_end_callback(self._end)

    def take(self) -> int:
        """The time since the last call."""
        total, self._total_ns = self._total_ns, 0
        return total

    def _start(self, _: Any) -> None:
        self._compiled_ns = wheel.cache_stats().compile_ns
        self._began_ns = time.perf_counter_ns()

    def _end(self, _: Any) -> None:
        took = time.perf_counter_ns() - self._began_ns
        self._total_ns += max(0, took - (wheel.cache_stats().compile_ns - self._compiled_ns))
