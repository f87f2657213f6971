"""One rung as the parent sees it: its worker, its clock, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tpu_perf.ladder.environment import describe_environment
from tpu_perf.ladder.failure import Failure, from_death, oom_kills
from tpu_perf.ladder.interpreter import interpreter_of
from tpu_perf.ladder.process import WorkerDied, WorkerProcess, WorkerTimeout
from tpu_perf.ladder.protocol import Message
from tpu_perf.record.plan import Plan
from tpu_perf.record.run import Environment, Facts, Run
from tpu_perf.record.store import PARTIAL_SUFFIX, seal_run


class RungEnded(Exception):
    """The rung did not finish; its run has been written."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass(slots=True)
class RungState:
    """A rung between its start and its run."""

    plan: Plan
    directory: Path
    process: WorkerProcess | None = None
    spent_s: float = 0.0  # wall clock in which this rung, and no other, was at work
    phase: str = "set-up"
    peak_rss: int = 0
    round_s: float = 0.0  # wall clock of the latest round, pauses not included
    environment: Environment | None = None
    facts: Facts = field(default_factory=Facts)
    warnings: list[str] = field(default_factory=list)
    started_at: str = ""
    oom_kills: int = 0

    def start(self) -> None:
        """Start the worker; it sets the rung up by itself and then says `ready`."""
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self.oom_kills = oom_kills()
        partial = self.directory.with_name(self.directory.name + PARTIAL_SUFFIX)
        interpreter = interpreter_of(self.plan)
        self.process = WorkerProcess(partial / "log.txt", self.plan.threads, interpreter)
        self.process.send(
            job="rung",
            plan=self.plan.to_json(),
            directory=str(self.directory),
            started_at=self.started_at,
            threads=self.plan.threads,
        )

    def command(self, name: str, phase: str, **fields: Any) -> None:
        assert self.process is not None
        self.phase = phase
        self.process.send(command=name, **fields)

    def wait_for(self, kind: str, on_progress: Callable[[Message], None]) -> Message:
        """The worker's answer. Raises RungEnded once the rung has failed and is sealed."""
        assert self.process is not None
        begin = time.monotonic()
        try:
            while True:
                left = self.plan.sampling.timeout_s - self.spent_s - (time.monotonic() - begin)
                message = self.process.receive(max(left, 0.0))
                if message["kind"] == kind:
                    return message
                self._hear(message, on_progress)
        except WorkerTimeout:
            limit = self.plan.sampling.timeout_s
            failure = Failure("timeout", f"exceeded timeout_s = {limit:g} s during {self.phase}")
            raise self.end(failure) from None
        except WorkerDied as death:
            no_memory = oom_kills() > self.oom_kills
            text = self.process.log_text()
            failure = from_death(death.exit_code, self.phase, no_memory, text)
            raise self.end(failure) from None
        finally:
            self.spent_s += time.monotonic() - begin

    def _hear(self, message: Message, on_progress: Callable[[Message], None]) -> None:
        if message["kind"] == "progress":
            on_progress(message)
        elif message["kind"] == "facts":
            self.facts = Facts.from_json(message["facts"])
            self.warnings += message["warnings"]
        elif message["kind"] == "failed":
            raise self.end(Failure(message["status"], message["reason"]))

    def end(self, failure: Failure) -> RungEnded:
        """Stop the worker and write the run with what there is. Returns what to raise."""
        self.stop()
        run = Run(
            plan=self.plan,
            environment=self.environment or describe_environment("unknown", 0),
            status=failure.status,
            reason=failure.reason,
            facts=self.facts,
            warnings=tuple(self.warnings),
            started_at=self.started_at or None,
        )
        seal_run(self.directory, run)
        return RungEnded(failure)

    def stop(self) -> None:
        if self.process is not None:
            with suppress(OSError):
                self.process.kill()

    def add_facts(self, **facts: Any) -> None:
        self.facts = replace(self.facts, **facts)
