"""A run of a rung that is watched, not timed: in a process of its own, with TorchTPU's log on.

Run as `python -m tpu_perf.engines.torch_tpu.traced_run PLAN_FILE RESULT_FILE`. The log costs
TorchTPU about as much again for a small op and can be switched on only when a process starts, so
steps that are timed run without it; batches and programs are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_perf.engines.torch_tpu import wheel
from tpu_perf.engines.torch_tpu.resolving import Entries, Resolver, Window
from tpu_perf.errors import EnvironmentProblem
from tpu_perf.record.plan import Plan

if TYPE_CHECKING:
    from tpu_perf.engines.torch_tpu.engine import TorchTpuSession

_MAX_COLD_STEPS = 8
_STEPS = 2
_MODULE = re.compile(r"^module @\S+")
#: The queue is at rest when no request came for so long.
_REST_S = 0.001
_COMPILE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedBatch:
    """A program that ran, in a step: times of time.perf_counter_ns; `program` is a key, None
    where it could not be resolved; `reason` None for a compiled graph, which no flush cut."""

    start_ns: int
    end_ns: int
    program: str | None
    name: str
    reason: str | None
    hit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """One step. `requests` are those that TorchTPU's cache counted in it."""

    phase: str
    start_ns: int
    dispatched_ns: int
    end_ns: int
    loss: float | None
    grad_norm: float | None
    requests: int
    compiles: int
    batches: tuple[TracedBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedProgram:
    """A program of a batch or of a compiled graph, as TorchTPU prints it."""

    name: str
    kind: str  # batch | graph | step
    stablehlo: str
    graph: str


@dataclass(slots=True, kw_only=True)
class Trace:
    """What the watched run found. `dropped` batches did not fit into TorchTPU's log."""

    steps: list[TracedStep] = field(default_factory=list)
    programs: dict[str, TracedProgram] = field(default_factory=dict)
    dropped: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trace:
        return cls(
            dropped=data["dropped"],
            programs={key: TracedProgram(**one) for key, one in data["programs"].items()},
            steps=[
                TracedStep(**{**step, "batches": tuple(TracedBatch(**b) for b in step["batches"])})
                for step in data["steps"]
            ],
        )


def run_traced(plan: Plan, timeout_s: float) -> Trace:
    """Watch the plan's steps in a process of its own. Raises EnvironmentProblem with its last
    words if it fails."""
    with tempfile.TemporaryDirectory(prefix="tpu_perf_torch_tpu_") as made:
        directory = Path(made)
        (directory / "plan.json").write_text(json.dumps(plan.to_json()), encoding="utf-8")
        result, log = directory / "result.json", directory / "log.txt"
        command = [sys.executable, "-m", "tpu_perf.engines.torch_tpu.traced_run"]
        environment = {**os.environ, "TORCH_TRACE": made}
        # Its programs are to be compiled, not loaded: only then are they logged.
        environment.pop("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", None)
        with log.open("wb") as output:
            try:
                done = subprocess.run(
                    [*command, str(directory / "plan.json"), str(result)], env=environment,
                    stdout=output, stderr=output, timeout=timeout_s, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise EnvironmentProblem(
                    f"watching TorchTPU's batches took longer than {timeout_s:g} s"
                ) from None
        if not result.is_file():
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            errors = [line for line in lines if "Error" in line and not line.startswith("E0000")]
            words = (errors or lines or ["nothing"])[-1]
            raise EnvironmentProblem(
                f"watching TorchTPU's batches ended with {done.returncode}: {words[:300]}"
            )
        return Trace.from_json(json.loads(result.read_text(encoding="utf-8")))


class Watcher:
    """Steps a session and keeps what TorchTPU logs of each."""

    def __init__(self, session: TorchTpuSession, mode: str) -> None:
        self.trace = Trace()
        self._session = session
        self._mode = mode
        self._index = 0
        self._keys: dict[str, str] = {}
        #: Log times are of the system's clock.
        self._shift_ns = time.perf_counter_ns() - time.time_ns()

    def run(self) -> Trace:
        wheel.drain()  # setting up is no step
        for _ in range(_MAX_COLD_STEPS):
            batches = self._step("trace_warmup")
            if all(batch.hit for batch in batches):
                break
        resolver = self._resolved()
        for _ in range(_STEPS):
            self._step("trace", resolver)
        return self.trace

    def _resolved(self) -> Resolver | None:
        """Watch one step with an empty cache and one with a full one, op by op."""
        resolver: Resolver | None = None
        for cold in (True, False):
            if cold:
                wheel.clear_cache()
            looks = _Looks()
            with looks.after_every_op(alone=self._mode in ("compile", "whole_step")):
                self._session.step(self._next())
                self._session.fence()
            looks.look()
            self.trace.dropped += looks.dropped
            names = tuple(batch.name for batch in looks.batches)
            if resolver is None:
                resolver = Resolver(names)
            elif names != resolver.names:
                return resolver
            resolver.misses([self._program(batch) for batch in looks.batches])
            resolver.reads(looks.batches, looks.windows)
        assert resolver is not None
        return self._unwatched(resolver)

    def _unwatched(self, resolver: Resolver) -> Resolver:
        """Two steps without looks, whose programs may differ in what is donated: an argument that
        a look holds on to is not."""
        wheel.clear_cache()
        batches = self._step("trace_warmup")
        if tuple(batch.name for batch in batches) == resolver.names:
            resolver.misses([self._program(batch) for batch in batches])
        resolver.by_elimination()
        self._step("trace_warmup")
        return resolver

    def _next(self) -> int:
        self._index += 1
        return self._index - 1

    def _step(self, phase: str, resolver: Resolver | None = None) -> list[wheel.Batch]:
        before = wheel.cache_stats()
        with wheel.compiled_calls() as calls:
            start = time.perf_counter_ns()
            self._session.step(self._next())
            dispatched = time.perf_counter_ns()
            self._session.fence()
            end = time.perf_counter_ns()
        after = wheel.cache_stats()
        batches, dropped = wheel.drain()
        self.trace.dropped += dropped
        same = resolver is not None and resolver.names == tuple(b.name for b in batches)
        rows = []
        for index, batch in enumerate(batches):
            key = self._program(batch)
            if key is None and same and resolver is not None:
                key = resolver.programs[index]
            rows.append(self._row(batch, key))
        rows += [self._compiled(*call) for call in calls]
        outcome = self._session.outcome()
        wheel.drain()  # reading the loss back is no part of the step
        self.trace.steps.append(
            TracedStep(
                phase=phase,
                start_ns=start,
                dispatched_ns=dispatched,
                end_ns=end,
                loss=outcome.loss,
                grad_norm=outcome.grad_norm,
                requests=after.requests - before.requests,
                compiles=after.compilations - before.compilations,
                batches=tuple(sorted(rows, key=lambda row: row.start_ns)),
            )
        )
        return batches

    def _row(self, batch: wheel.Batch, key: str | None) -> TracedBatch:
        return TracedBatch(
            start_ns=batch.start_us * 1000 + self._shift_ns,
            end_ns=batch.end_us * 1000 + self._shift_ns,
            program=key,
            name=batch.name,
            reason=batch.reason,
            hit=batch.hit,
        )

    def _compiled(self, start: int, end: int, text: str) -> TracedBatch:
        key = self._keep(text, "", "compiled", "step" if self._mode == "whole_step" else "graph")
        return TracedBatch(
            start_ns=start, end_ns=end, program=key, name="compiled graph", reason=None, hit=True
        )

    def _program(self, batch: wheel.Batch) -> str | None:
        if not batch.stablehlo:
            return None
        return self._keep(batch.stablehlo, batch.graph, batch.name, "batch")

    def _keep(self, text: str, graph: str, name: str, kind: str) -> str | None:
        if not text:
            return None
        # The module's name is that of a Python frame, which is no part of what is computed.
        body = _MODULE.sub("module @", text, count=1)
        key = self._keys.get(body)
        if key is None:
            key = self._keys[body] = hashlib.sha256(body.encode()).hexdigest()
            self.trace.programs[key] = TracedProgram(
                name=name, kind=kind, stablehlo=text, graph=graph
            )
        return key


@dataclass(slots=True)
class _Looks:
    """Looks at the cache after every op of a step, once the queue is at rest."""

    batches: list[wheel.Batch] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    dropped: int = 0
    _entries: Entries = field(default_factory=Entries)

    def __post_init__(self) -> None:
        self._entries.changes(wheel.cache_stats().entries)

    @contextmanager
    def after_every_op(self, alone: bool) -> Iterator[None]:
        """`alone`: look after the step only, since Dynamo compiles nothing under such a mode."""
        with nullcontext() if alone else _after_ops(self.look):
            yield

    def look(self) -> None:
        first = len(self.batches)
        requests, since = -1, time.monotonic()
        started = since
        while True:
            batches, dropped = wheel.drain()
            self.batches += batches
            self.dropped += dropped
            stats, now = wheel.cache_stats(), time.monotonic()
            if stats.requests != requests:
                requests, since = stats.requests, now
            compiled = all(entry.compile_us for entry in stats.entries)
            if now - since > _REST_S and (compiled or now - started > _COMPILE_S):
                break
            time.sleep(0.0002)
        reads = self._entries.changes(stats.entries)
        if len(self.batches) > first and reads is not None:
            self.windows.append(Window(first, len(self.batches), reads))


def _after_ops(look: Callable[[], None]) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            look()
            return result

    mode: Any = Mode
    return mode()


def main(arguments: list[str]) -> None:
    from tpu_perf.engines.torch_tpu.engine import open_session
    from tpu_perf.workloads.interface import WORKLOADS

    plan = Plan.from_json(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    workload = WORKLOADS.get(plan.workload.kind).build(plan.workload, plan.seed)
    session = open_session(plan, workload, texts=True)
    wheel.own_the_log()
    trace = Watcher(session, str(plan.mode)).run()
    temporary = Path(arguments[1] + ".tmp")
    temporary.write_text(json.dumps(trace.to_json()), encoding="utf-8")
    temporary.replace(arguments[1])
    sys.stdout.flush()
    os._exit(0)  # the wheel's threads are still about


if __name__ == "__main__":
    main(sys.argv[1:])
