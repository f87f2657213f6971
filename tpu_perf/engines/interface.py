"""What an engine must offer so that the ladder can measure a rung on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from tpu_perf.record.plan import Plan
from tpu_perf.registry import Registry
from tpu_perf.workloads.interface import BuiltWorkload

if TYPE_CHECKING:
    import torch

    from tpu_perf.recorder.detailed import DetailedRecorder

#: Index of a step, and its start and end in ns of time.perf_counter_ns.
Span = tuple[int, int, int]


class RungUnavailable(Exception):
    """This engine cannot run this plan here (no C++ compiler, say): the rung is `skipped`."""


class DoesNotFit(Exception):
    """The plan needs more device memory than there is: the rung is `does_not_fit`."""


def raise_if_out_of_memory(error: RuntimeError) -> None:
    """DoesNotFit where the device says that its memory ran out."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
        raise DoesNotFit(text.splitlines()[0]) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a finished step reports; None where the workload does not say."""

    loss: float | None
    grad_norm: float | None

    @classmethod
    def read(cls, last: tuple[torch.Tensor, torch.Tensor | None] | None) -> StepOutcome:
        """Loss and gradient norm of the last step, read from their 0-dim tensors."""
        if last is None:
            return cls(loss=None, grad_norm=None)
        loss, norm = last
        return cls(loss=float(loss), grad_norm=None if norm is None else float(norm))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTimes:
    """Host and device time of a steady step in ns, and how they were told apart."""

    host_ns: float | None
    device_ns: float | None
    note: str


class Session(Protocol):
    """One rung, set up on its device, stepping."""

    def step(self, index: int) -> None:
        """Start step `index` (its batch, forward, backward, optimizer). Must not wait for the
        device unless the mode itself does (Debug)."""
        ...

    def fence(self) -> None:
        """Wait until everything that `step` started, parameters included, is done."""
        ...

    def outcome(self) -> StepOutcome:
        """Loss and gradient norm of the last fenced step. Called outside the timed window."""
        ...

    def compile_count(self) -> int:
        """Programs compiled or loaded so far; a step that changes it was not warm."""
        ...

    def measure_lanes(self, first_index: int, steps: int) -> LaneTimes:
        """Run `steps` more steps under a probe that tells host from device time."""
        ...

    def look_inside(
        self, steps: Callable[[], Sequence[Span]], recorder: DetailedRecorder
    ) -> Mapping[str, pa.Table]:
        """Run `steps`, which records into `recorder` and returns the spans of its steps, with
        the device watched as closely as the engine can: device events go to the recorder, the
        tables of record.details are returned, those that the engine has."""
        ...

    def programs(self) -> pa.Table | None:
        """The program table (record.events.PROGRAM_COLUMNS), None if the engine has none."""
        ...

    def write_programs(self, directory: Path) -> None:
        """Write `<key>/stablehlo.mlir.zst` and `<key>/cost.json` for every program."""
        ...

    def peak_bytes(self) -> int | None:
        """Peak live device bytes so far, None if unknown."""
        ...

    def notes(self) -> Mapping[str, str]:
        """What a reader of the run should know (fallbacks used, optimizer made capturable...)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step that the worker did not time itself; times are ns of time.perf_counter_ns."""

    phase: str
    start_ns: int
    dispatched_ns: int
    end_ns: int
    compiles: int
    loss: float | None
    grad_norm: float | None


@runtime_checkable
class RecordsApart(Protocol):
    """A session whose events are of steps of their own, because recording slows the others."""

    def recorded_apart(self, first_index: int, recorder: DetailedRecorder) -> Sequence[StepRow]:
        """Give the events of those steps to the recorder, numbered from `first_index`; return
        the steps. Phase `trace` marks the steady ones."""
        ...


class Engine(Protocol):
    """One backend."""

    def open(self, plan: Plan, workload: BuiltWorkload) -> Session:
        """Move the workload to the device in the plan's mode. Raises RungUnavailable,
        DoesNotFit or TpuPerfError."""
        ...

    def device(self) -> tuple[str, int]:
        """Device kind as the backend names it, and how many there are."""
        ...


ENGINES: Registry[Engine] = Registry("engine", "tpu_perf.engines")
