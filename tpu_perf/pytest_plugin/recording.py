"""Records the steps of a test, on device "tpu" or on the CPU, into a run directory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tpu_perf.errors import ConfigError
from tpu_perf.ladder.environment import describe_environment
from tpu_perf.record.events import STEP_COLUMNS
from tpu_perf.record.plan import NOT_SAMPLED, OptimizerPlan, Plan, WorkloadPlan
from tpu_perf.record.run import Facts, Run
from tpu_perf.record.store import RunWriter, table_of_rows
from tpu_perf.recorder import Recorder, record_into
from tpu_perf.recorder.machine_load import OtherLoad

WARMUP_STEPS = 5


class StepRecorder:
    """What `tpu_perf_recorder` gives a test: `with tpu_perf_recorder.step(): train(batch)`, or
    `tpu_perf_recorder.measure(train, batch, steps=100)`.

    The first `warmup` steps (5; compiles belong here) never count as step time. A step ends when
    the device has finished it. `directory` holds the run once `finish` has been called, which the
    fixture does after the test.
    """

    def __init__(self, directory: Path, test: str) -> None:
        self.directory = directory
        self.warmup = WARMUP_STEPS
        self._test = test
        self._recorder = Recorder()
        self._rows: list[tuple[Any, ...]] = []
        self._others = OtherLoad()
        self._timing = ExitStack()
        self._failure: str | None = None
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._finished = False
        self._inside = False

    @contextmanager
    def step(self, *, loss: Callable[[], float] | None = None) -> Iterator[None]:
        """Everything inside is one step. `loss` is called after the step has been timed, for the
        run's loss. Raises ConfigError inside another step, and once the run is written."""
        if self._finished or self._inside:
            why = "the run is written already" if self._finished else "a step is under way already"
            raise ConfigError(f"no step can begin here: {why}")
        index = len(self._rows)
        phase = "timed" if index >= self.warmup else "warmup" if index else "first"
        if index == self.warmup:
            self._timing.enter_context(self._others.watching())
        self._inside = True
        compiled = _compiles()
        try:
            with record_into(self._recorder):
                self._recorder.begin_step(index)
                start = time.perf_counter_ns()
                yield
                dispatched = time.perf_counter_ns()
                _wait_for_device()
                end = time.perf_counter_ns()
                self._recorder.end_step()
        except BaseException as error:
            self._failure = f"step {index}: {type(error).__name__}: {error}"
            raise
        finally:
            self._inside = False
        value = None if loss is None else float(loss())
        times = (start, dispatched, end)
        self._rows.append((index, phase, 0, *times, _compiles() - compiled, value, None))

    def measure(
        self, function: Callable[..., Any], *arguments: Any, steps: int = 100, **named: Any
    ) -> Any:
        """Call the function `steps` times after the warm-up steps; returns its last result."""
        result = None
        for _ in range(max(0, self.warmup - len(self._rows)) + steps):
            with self.step():
                result = function(*arguments, **named)
        return result

    @property
    def timed_steps(self) -> int:
        """Steps so far that count."""
        return sum(row[1] == "timed" for row in self._rows)

    def finish(self) -> Path | None:
        """Write the run (once) and return its directory; None if no step was recorded."""
        if not self._finished:
            self._finished = True
            self._timing.close()
            if self._rows or self._failure:
                self.directory.parent.mkdir(parents=True, exist_ok=True)
                self._write()
        return self.directory if self._rows or self._failure else None

    def _write(self) -> None:
        """Steps and events as a run directory. The only place that knows how a run is written."""
        on_device = _loaded("device") is not None
        writer = RunWriter(self.directory)
        writer.write_events(self._recorder.drain())
        writer.write_steps(table_of_rows(STEP_COLUMNS, self._rows))
        plan = Plan(
            ladder="pytest",
            rung=self._test,
            workload=WorkloadPlan(kind="pytest", params={"test": self._test}),
            optimizer=OptimizerPlan(name="unknown"),
            engine="xla" if on_device else "cpu",
            mode="unknown",
            precision="unknown",
            sampling=NOT_SAMPLED,
        )
        facts = Facts(
            dropped_events=self._recorder.dropped_events, other_cpu_share=self._others.share
        )
        writer.finish(
            Run(
                plan=plan,
                environment=describe_environment(*_device()),
                status="failed" if self._failure else "ok",
                reason=self._failure,
                facts=facts,
                started_at=self._started_at,
            )
        )


def _loaded(module: str) -> Any:
    """A module of the runtime if the test has loaded device "tpu", else None."""
    if "tpu_perf.runtime.device" not in sys.modules:
        return None
    return sys.modules.get(f"tpu_perf.runtime.{module}")


def _wait_for_device() -> None:
    transfers = _loaded("transfers")
    if transfers is not None:
        transfers.synchronize()


def _compiles() -> int:
    """Programs compiled or loaded so far."""
    cache = _loaded("program_cache")
    return 0 if cache is None else int(cache.CACHE.misses)


def _device() -> tuple[str, int]:
    private = _loaded("jax_private")
    return ("cpu", 1) if private is None else (str(private.device().device_kind), 1)
