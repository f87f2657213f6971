"""Engine `cpu`: torch itself on the CPU, eager or compiled by inductor, for context."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_perf.engines.interface import (
    ENGINES,
    LaneTimes,
    RungUnavailable,
    Span,
    StepOutcome,
)
from tpu_perf.record.events import Tier
from tpu_perf.record.plan import Plan
from tpu_perf.recorder import active
from tpu_perf.workloads.interface import Batch, BuiltWorkload

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from tpu_perf.recorder.detailed import DetailedRecorder


class CpuSession:
    """A rung on the CPU. Every op has finished when it returns, so a fence has nothing to do."""

    def __init__(
        self,
        workload: BuiltWorkload,
        run: Callable[[Batch], tuple[torch.Tensor, torch.Tensor | None]],
        compiles: _CompileCounter | None,
        notes: Mapping[str, str],
    ) -> None:
        self._workload = workload
        self._run = run
        self._compiles = compiles
        self._notes = notes
        self._last: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def step(self, index: int) -> None:
        self._last = self._run(self._workload.batch(index))

    def fence(self) -> None:
        pass

    def outcome(self) -> StepOutcome:
        return StepOutcome.read(self._last)

    def compile_count(self) -> int:
        return 0 if self._compiles is None else self._compiles.count

    def measure_lanes(self, first_index: int, steps: int) -> LaneTimes:
        return LaneTimes(
            host_ns=None,
            device_ns=None,
            note="on torch's own CPU backend host and device are the same threads",
        )

    def look_inside(
        self, steps: Callable[[], Sequence[Span]], recorder: DetailedRecorder
    ) -> Mapping[str, pa.Table]:
        return {}  # torch's own kernels tell the recorder nothing, so the steps are not run

    def programs(self) -> pa.Table | None:
        return None

    def write_programs(self, directory: Path) -> None:
        """torch's own kernels are not programs of XLA."""

    def peak_bytes(self) -> int | None:
        return None  # torch's CPU allocator keeps no count of live bytes

    def notes(self) -> Mapping[str, str]:
        return self._notes


class CpuEngine:
    """The registry's entry."""

    modes = ("eager", "inductor")

    def open(self, plan: Plan, workload: BuiltWorkload) -> CpuSession:
        import torch

        if plan.mode == "inductor":
            _check_inductor(workload)
        torch.manual_seed(plan.seed)
        notes = {"hbm_peak_bytes": "torch's CPU allocator keeps no count of live bytes"}
        if workload.make_step is not None:
            step = workload.make_step(torch.device("cpu"))
            return CpuSession(workload, lambda batch: (step(batch).detach(), None), None, notes)

        from tpu_perf.workloads.training_step import TrainingStep, build_optimizer

        module, compiles = workload.module, None
        if plan.mode == "inductor":
            module, compiles = _compiled(module, plan)
            notes["compiler"] = "torch.compile(model, dynamic=False) by inductor"
        training = TrainingStep(
            module=module,
            optimizer=build_optimizer(module, plan.optimizer),
            loss=workload.loss,
            precision=plan.precision,
            device_type="cpu",
        )
        return CpuSession(workload, training, compiles, notes)

    def device(self) -> tuple[str, int]:
        return "cpu", 1


def cxx_compiler() -> str | None:
    """The C++ compiler that inductor would use, None if there is none."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    return next((name for name in names if shutil.which(name)), None)


def _check_inductor(workload: BuiltWorkload) -> None:
    if cxx_compiler() is None:
        raise RungUnavailable(
            "inductor needs a C++ compiler, and neither g++ nor clang++ was found "
            "(set CXX, or install one)"
        )
    if workload.make_step is not None:
        raise RungUnavailable(
            "the workload brings its own step function; this rung compiles a model"
        )


def _compiled(module: torch.nn.Module, plan: Plan) -> tuple[Any, _CompileCounter]:
    import torch
    from torch._inductor import config

    setattr(config.cpp, "cxx", (None, cxx_compiler()))  # noqa: B010 - typed as what it is by default
    config.force_disable_caches = plan.cache_dir is None
    if plan.cache_dir is not None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(plan.cache_dir, "inductor")
    # A compile pool's processes would take the cores of the rungs that are being timed.
    config.compile_threads = 2  # warm-up has the machine to itself
    counter = _CompileCounter()
    options = dict(plan.compiler_options) or None
    return torch.compile(module, dynamic=False, options=options), counter


class _CompileCounter:
    """Counts what Dynamo compiles, backward graphs included, and records each as an event."""

    def __init__(self) -> None:
        from torch._dynamo import callback

        self.count = 0
        self._started_ns = 0
        self._hits = 0
        callback.callback_handler.register_start_callback(self._start)
        callback.callback_handler.register_end_callback(self._end)

    def _start(self, _: Any) -> None:
        self._hits = _cache_hits()
        self._started_ns = time.perf_counter_ns()

    def _end(self, _: Any) -> None:
        self.count += 1
        recorder = active.recorder
        if recorder is None:
            return
        now = time.perf_counter_ns()
        tier = Tier.DIRECTORY if _cache_hits() > self._hits else Tier.COMPILED
        took = now - self._started_ns
        source = "torch.compile"
        recorder.compile((self._started_ns, now, -1, int(tier), 0, took, "", source, recorder.step))


def _cache_hits() -> int:
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["fxgraph_cache_hit"])


ENGINES.add("cpu", CpuEngine())
