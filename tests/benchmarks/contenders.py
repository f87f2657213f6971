"""What a worker can run: steps and chains on one device, every timed one fenced.

`Spec` is also the parent's name for a contender, so this module imports neither torch nor jax
until a contender is built.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tests.benchmarks.sizes import BATCHES, SIZES

#: Losses (or end values) that a contender shows as evidence of its work.
EVIDENCE = 8
#: Ops in one chain of `add`.
CHAIN = 2_000
_MODES = {"strict": "DEFER_NEVER", "defer": "DEFER_AND_FUSE", "compile": "DEFER_NEVER",
          "debug": "DEFER_NEVER_AND_LAUNCH_BLOCKING"}  # fmt: skip
_clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class Spec:
    """One contender. `variant` changes how a worker runs, not what it builds."""

    kind: str  # add | step | whole_step | jax | compile | ops | model | import | memory
    peer: bool = False
    mode: str = "strict"  # strict | defer | debug; for a model also compile
    size: str = "small_lm"  # for a model its name
    variant: str = "plain"  # plain | recorded; of the kind "ops" the op
    directory: str = ""  # program cache of the kind "compile"
    device: str = "tpu"  # where a model runs: on "cpu", compile means inductor


class Contender(Protocol):
    """Runs its timed unit `count` times: nanoseconds of each, and what each computed."""

    def run(self, count: int, variant: str) -> tuple[list[int], list[float]]: ...


def build(spec: Spec) -> Contender:
    """The contender, on a device loaded for it."""
    if spec.kind == "jax":
        return _JaxStep(spec)
    if spec.device == "cpu":
        return _ModelStep(spec, lambda: None)
    fence = _load_device(spec)
    if spec.kind == "add":
        return _AddChain(fence)
    if spec.kind == "ops":
        from tests.benchmarks.op_calls import OpCalls

        return OpCalls(fence)
    if spec.kind == "model":
        return _ModelStep(spec, fence)
    if spec.kind == "memory":
        return _LiveTensors(fence)
    if spec.kind in ("step", "whole_step"):
        return _TorchStep(spec, fence)
    raise ValueError(f"no contender of kind {spec.kind!r}")


def _load_device(spec: Spec) -> Callable[[], None]:
    """Load device "tpu", ours or the peer's, in the mode asked for; returns its fence.

    Measured for both: after the fence no loss, parameter or optimizer state has work left.
    """
    if spec.peer:
        from tests.benchmarks.peer_loader import load_torch_tpu

        load_torch_tpu()
    else:
        import tpu_perf.runtime.device  # noqa: F401 - loads the device
    import torch

    device: Any = torch.get_device_module("tpu")
    # Never left: the worker runs in this mode until it ends.
    device.set_eager_mode(device.EagerMode[_MODES[spec.mode]]).__enter__()
    fence: Callable[[], None] = torch.accelerator.synchronize if spec.peer else device.synchronize
    return fence


class _AddChain:
    """x + x + ... on 8x8, waited for at the end of the chain."""

    def __init__(self, fence: Callable[[], None]) -> None:
        import torch

        self.fence = fence
        self.x = torch.full((8, 8), 0.5).to("tpu")

    def run(self, count: int, variant: str) -> tuple[list[int], list[float]]:
        times, values = [], []
        for _ in range(count):
            x = y = self.x
            start = _clock()
            for _ in range(CHAIN):
                y = y + x
            self.fence()
            times.append(_clock() - start)
            values.append(float(y.cpu()[0, 0]))
        return times, values


class _LiveTensors:
    """Host memory that a live tensor of one element takes, in bytes where others have times."""

    COUNT = 20_000

    def __init__(self, fence: Callable[[], None]) -> None:
        import torch

        x = torch.ones(1).to("tpu")
        warm = [x + 1 for _ in range(100)]
        fence()
        before = _resident_bytes()
        # Once: what the allocator keeps of a first time would hide a second one.
        alive = [x + 1 for _ in range(self.COUNT)]
        fence()
        self.size = (_resident_bytes() - before) // self.COUNT
        self.value = float((alive[-1] + warm[-1]).cpu()[0])

    def run(self, count: int, variant: str) -> tuple[list[int], list[float]]:
        return [self.size] * count, [self.value]


def _resident_bytes() -> int:
    import resource

    with open("/proc/self/statm", encoding="ascii") as statistics:
        return int(statistics.read().split()[1]) * resource.getpagesize()


class _TorchStep:
    """The training step on device "tpu", ours or the peer's."""

    def __init__(self, spec: Spec, fence: Callable[[], None]) -> None:
        from tests.benchmarks.torch_model import TrainingStep

        self.fence = fence
        training = TrainingStep(SIZES[spec.size], "tpu")
        self.batches = training.batches
        self.step: Callable[..., Any] = training
        if spec.kind == "whole_step":
            from tpu_perf.runtime.whole_step import WholeStep

            self.step = WholeStep(training, (training.optimizer,))
        self.done = 0

    def run(self, count: int, variant: str) -> tuple[list[int], list[float]]:
        if variant == "plain":
            return self._run(count, None)
        from tpu_perf.recorder import Recorder, record_into

        recorder = Recorder()
        with record_into(recorder):
            result = self._run(count, recorder)
        recorder.drain()
        return result

    def _run(self, count: int, recorder: Any) -> tuple[list[int], list[float]]:
        times, losses = [], []
        for _ in range(count):
            batch = self.batches[self.done % BATCHES]
            self.done += 1
            start = _clock()
            if recorder is not None:
                recorder.begin_step(self.done)
            loss = self.step(*batch)
            self.fence()
            if recorder is not None:
                recorder.end_step()
            times.append(_clock() - start)
            losses.append(float(loss.cpu()))
        return times, losses


class _ModelStep:
    """The training step of a model of transformers."""

    def __init__(self, spec: Spec, fence: Callable[[], None]) -> None:
        from tests.benchmarks.hf_models import ModelStep

        backend = "inductor" if spec.device == "cpu" else "tpu"
        training = ModelStep(spec.size, spec.device, backend if spec.mode == "compile" else None)
        self.step = training.step
        self.fence = fence

    def run(self, count: int, variant: str) -> tuple[list[int], list[float]]:
        times, losses = [], []
        for _ in range(count):
            start = _clock()
            loss = self.step()
            self.fence()
            times.append(_clock() - start)
            losses.append(float(loss.cpu()))
        return times, losses


class _JaxStep:
    """The hand-written JAX step."""

    def __init__(self, spec: Spec) -> None:
        import jax

        from tests.benchmarks import jax_model

        size = SIZES[spec.size]
        self.train_step = jax_model.train_step
        self.state = jax_model.initial_state(size)
        self.batches = jax_model.device_batches(size)
        self.block: Callable[[Any], Any] = jax.block_until_ready
        self.done = 0

    def run(self, count: int, variant: str) -> tuple[list[int], list[float]]:
        times, losses = [], []
        for _ in range(count):
            tokens, targets = self.batches[self.done % BATCHES]
            self.done += 1
            start = _clock()
            self.state, loss = self.train_step(self.state, tokens, targets)
            self.block((loss, self.state.parameters))
            times.append(_clock() - start)
            losses.append(float(loss))
        return times, losses


def compile_time_ns(spec: Spec) -> tuple[int, list[float]]:
    """Run a few steps with a directory cache; time spent tracing and compiling, or loading."""
    import tpu_perf.runtime.device  # noqa: F401 - loads the device
    from tpu_perf.runtime.program_cache import CACHE

    CACHE.use_directory(spec.directory)
    _, losses = _TorchStep(spec, _load_device(spec)).run(EVIDENCE, "plain")
    return sum(program.compile_ns for program in CACHE.programs), losses
