"""Engine `xla`: our runtime, device "tpu", in all its modes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tpu_perf.engines.interface import (
    ENGINES,
    LaneTimes,
    RungUnavailable,
    Span,
    StepOutcome,
    raise_if_out_of_memory,
)
from tpu_perf.engines.spreading import Spread
from tpu_perf.record.plan import Mode, Plan
from tpu_perf.workloads.interface import Batch, BuiltWorkload

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from tpu_perf.recorder.detailed import DetailedRecorder

Step = Callable[[Batch], tuple["torch.Tensor", "torch.Tensor | None"]]

_EAGER_MODES: dict[Mode, str] = {
    "strict": "DEFER_NEVER",
    "debug": "DEFER_NEVER_AND_LAUNCH_BLOCKING",
    "defer_and_fuse": "DEFER_AND_FUSE",
    "compile": "DEFER_NEVER",
    "whole_step": "DEFER_NEVER",
}


class XlaSession:
    """A rung on device "tpu"."""

    def __init__(
        self, workload: BuiltWorkload, step: Step, more_notes: Callable[[], Mapping[str, str]],
        spread: Spread | None = None,
    ) -> None:  # fmt: skip
        from tpu_perf.runtime.program_cache import CACHE

        self._workload = workload
        self._step = step
        self._more_notes = more_notes
        self._spread = spread
        self._cache = CACHE
        self._last: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def step(self, index: int) -> None:
        batch = {name: value.to("tpu") for name, value in self._workload.batch(index).items()}
        try:
            self._last = self._step(batch)
        except RuntimeError as error:
            raise_if_out_of_memory(error)
            raise

    def fence(self) -> None:
        from tpu_perf.runtime.transfers import synchronize

        try:
            synchronize()
        except RuntimeError as error:
            raise_if_out_of_memory(error)
            raise

    def outcome(self) -> StepOutcome:
        return StepOutcome.read(self._last)

    def compile_count(self) -> int:
        return self._cache.misses

    def measure_lanes(self, first_index: int, steps: int) -> LaneTimes:
        from tpu_perf.runtime.device_lane import profile_device

        dispatch: list[int] = []
        for i in range(steps + 1):  # without the profiler, which slows the host
            start = time.perf_counter_ns()
            self.step(first_index + i)
            dispatch.append(time.perf_counter_ns() - start)
            self.fence()
        del dispatch[0]  # the first step after a pause finds cold caches

        def run() -> None:
            for i in range(steps + 1, 2 * steps + 1):
                self.step(first_index + i)
                self.fence()

        busy = profile_device(run)
        if busy is None:
            return LaneTimes(
                host_ns=median(dispatch), device_ns=None,
                note="XLA's profiler reported no device events",
            )  # fmt: skip
        return LaneTimes(
            host_ns=max(0.0, median(dispatch) - busy.inline_ns / steps),
            device_ns=busy.busy_ns / steps,
            note=f"device time: at least one XLA op ran, in {steps} extra steps under XLA's "
            f"profiler; host time: the step function in {steps} steps without it, less XLA ops run "
            "on the calling thread",
        )

    def look_inside(
        self, steps: Callable[[], Sequence[Span]], recorder: DetailedRecorder
    ) -> Mapping[str, pa.Table]:
        from tpu_perf.runtime.inside_view import record_device, tables_of_process

        with record_device(recorder) as spans:
            spans += steps()
        tables = dict(tables_of_process(recorder.sites))
        if self._spread is not None:
            tables["placements"] = self._spread.table()
        return tables

    def programs(self) -> pa.Table | None:
        from tpu_perf.runtime.program_files import program_table

        return program_table(self._cache.programs)

    def write_programs(self, directory: Path) -> None:
        from tpu_perf.runtime.program_files import write_program_files

        options = self._cache.compiler_options
        write_program_files(directory, self._cache.programs, options, buffers=True)

    def peak_bytes(self) -> int | None:
        from tpu_perf.runtime.memory import MEMORY

        return MEMORY.peak

    def notes(self) -> Mapping[str, str]:
        from tpu_perf.runtime.host_fallback import uses_note

        notes = dict(self._more_notes())
        on_host = uses_note()
        if on_host is not None:
            notes["host_fallback"] = on_host
        told = self._cache.tiers.notes()
        if told is not None:
            notes["program_cache"] = told
        return notes


class XlaEngine:
    """The registry's entry."""

    modes = tuple(_EAGER_MODES)

    def open(self, plan: Plan, workload: BuiltWorkload) -> XlaSession:
        _limit_threads(plan.threads)
        import torch

        from tpu_perf.runtime import device, jax_private

        if plan.sharding is not None:
            jax_private.want_devices(plan.sharding.devices)

        device.load()
        from tpu_perf.runtime.modes import STATE, EagerMode, switch
        from tpu_perf.runtime.program_cache import CACHE

        CACHE.use_directory(plan.cache_dir)
        CACHE.compiler_options = dict(plan.compiler_options)
        STATE.cpu_fallback = STATE.cpu_fallback or plan.cpu_fallback
        assert plan.mode != "unknown", "only captures made elsewhere have no mode"
        switch(EagerMode[_EAGER_MODES[plan.mode]])
        torch.manual_seed(plan.seed)
        try:
            step, notes, spread = _build_step(plan, workload)
        except RuntimeError as error:
            raise_if_out_of_memory(error)
            raise
        return XlaSession(workload, step, notes, spread)

    def device(self) -> tuple[str, int]:
        from tpu_perf.runtime import jax_private

        return str(jax_private.device().device_kind), len(jax_private.devices())


def _build_step(
    plan: Plan, workload: BuiltWorkload
) -> tuple[Step, Callable[[], Mapping[str, str]], Spread | None]:
    import torch

    from tpu_perf.runtime.whole_step import WholeStep
    from tpu_perf.workloads.training_step import TrainingStep, build_optimizer

    def no_notes() -> Mapping[str, str]:
        return {}

    if workload.make_step is not None and plan.sharding is not None:
        raise RungUnavailable(
            "the workload brings its own step function; this rung places the parameters of a model"
        )
    if workload.make_step is not None:
        users = workload.make_step(torch.device("tpu"))
        if plan.mode == "compile":
            raise RungUnavailable(
                "the workload brings its own step function; this rung compiles a model"
            )
        if plan.mode == "whole_step":
            users = whole = WholeStep(users)
            notes = partial(_whole_step_notes, whole)
            return lambda batch: (users(batch).detach(), None), notes, None
        return lambda batch: (users(batch).detach(), None), no_notes, None
    module, spread = workload.module, None
    if plan.sharding is None:
        module.to("tpu")
    else:
        spread = Spread(plan.sharding, module, workload.placements)
    optimizer = build_optimizer(module, plan.optimizer)
    if spread is not None:
        spread.optimizers = (optimizer,)
    training = TrainingStep(
        module=torch.compile(module, backend="tpu", dynamic=False)  # type: ignore[arg-type]
        if plan.mode == "compile"
        else module,
        optimizer=optimizer,
        loss=workload.loss,
        precision=plan.precision,
        device_type="tpu",
    )
    if plan.mode == "whole_step" or spread is not None:
        whole = WholeStep(training, (optimizer,), None if spread is None else spread.sharding)
        return whole, partial(_whole_step_notes, whole, spread), spread
    return training, no_notes, None


def _whole_step_notes(whole: Any, spread: Spread | None = None) -> Mapping[str, str]:
    notes = {"whole_step": f"{whole.recordings} steps recorded, {whole.replays} replayed"}
    if whole.why_recorded:
        notes["whole_step"] += f"; recorded again because {whole.why_recorded}"
    if whole.notes:
        notes["optimizer"] = "; ".join(whole.notes)
    return notes if spread is None else {**notes, **spread.notes()}


def _limit_threads(threads: int | None) -> None:
    """XLA:CPU sizes its pool by the CPUs this process may run on, once, at start."""
    import os

    if threads is not None and hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        if threads < len(allowed):
            os.sched_setaffinity(0, allowed[:threads])


ENGINES.add("xla", XlaEngine())
