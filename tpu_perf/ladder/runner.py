"""The parent: a worker per rung, warm-ups one by one, rounds in turns, a run for every rung."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from types import FrameType
from typing import Any

import psutil

from tpu_perf.chips import tpu_devices
from tpu_perf.ladder.directory import LadderDirectory
from tpu_perf.ladder.failure import Failure
from tpu_perf.ladder.known import Known, ReferenceRun
from tpu_perf.ladder.observer import Observer
from tpu_perf.ladder.protocol import Message
from tpu_perf.ladder.rung_state import RungEnded, RungState
from tpu_perf.ladder.sampling import round_order
from tpu_perf.record.plan import Plan
from tpu_perf.record.run import Environment, Status

#: Left free for the system and for what a rung may still allocate.
_RESERVE_BYTES = 2**30
_MARGIN = 1.25


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    return int(psutil.virtual_memory().available)


class LadderRunner:
    """Runs the given plans into a ladder directory.

    `available` and `exclusive` say how many rungs may be alive at once: as many as memory
    allows, and only one at a time on a TPU, which belongs to one process.
    """

    def __init__(
        self,
        directory: LadderDirectory,
        plans: Sequence[Plan],
        observer: Observer,
        *,
        available: Callable[[], int] = available_bytes,
        exclusive: bool | None = None,
    ) -> None:
        self._directory = directory
        self._observer = observer
        self._available = available
        self._exclusive = bool(tpu_devices()) if exclusive is None else exclusive
        self._states = {
            plan.rung: RungState(plan, directory.run_directory(plan.rung)) for plan in plans
        }
        self._ended: set[str] = set()
        self._reference: ReferenceRun | None = None
        self._known = Known()

    def run(self) -> None:
        """Run everything. On KeyboardInterrupt (or SIGTERM) what was measured stays readable,
        and the interrupt goes on to the caller."""
        try:
            with _terminate_like_ctrl_c():
                for rung in self._states:
                    self._directory.forget(rung)
                plans = [state.plan for state in self._states.values()]
                log = self._directory.path / "reference.log"
                self._reference = ReferenceRun(plans, log)
                self._run_blocks()
            finished = datetime.now(UTC).isoformat(timespec="seconds")
            self._directory.update(finished_at=finished)
        except KeyboardInterrupt:
            self._interrupted()
            raise
        finally:
            for state in self._states.values():
                state.stop()
            if self._reference is not None:
                self._reference.stop()

    def _run_blocks(self) -> None:
        pending = list(self._states.values())
        while pending:
            block = self._open_block(pending)
            names = tuple(state.plan.rung for state in block)
            if pending and block:
                left = ", ".join(state.plan.rung for state in pending)
                self._warn(
                    f"not all rungs could be alive at once: {', '.join(names)} are sampled first, "
                    f"then {left}; speed-ups across the two are not of paired rounds"
                )
            if names:
                self._directory.update(blocks=(*self._directory.ladder.blocks, names))
            self._sample(block)
            for state in self._alive(block):
                self._finish(state)

    def _open_block(self, pending: list[RungState]) -> list[RungState]:
        """Set up and warm as many rungs as fit; what is taken leaves `pending`.

        The first rung's peak tells what the others will need.
        """
        first = pending.pop(0)
        first.start()
        self._set_up(first)
        self._ask_reference()
        self._warm_up(first)
        if first.plan.rung in self._ended:
            return []
        rest = self._companions(first, pending)
        for state in rest:
            pending.remove(state)
        # Setting up is importing and building: two at a time, on purpose before any warm-up.
        for index, state in enumerate(rest):
            for ahead in rest[index : index + 2]:
                if ahead.process is None:
                    ahead.start()
            self._set_up(state)
        for state in self._alive(rest):
            self._warm_up(state)
        return [first, *self._alive(rest)]

    def _ask_reference(self) -> None:
        """Once, between set-up and warm-up of the first rung, when nothing else is at work."""
        if self._reference is None:
            return
        self._known = self._reference.answer(self._observer)
        self._reference = None
        for warning in self._known.warnings:
            self._warn(warning)

    def _companions(self, first: RungState, pending: Sequence[RungState]) -> list[RungState]:
        need = _MARGIN * first.peak_rss
        room = int(max(0.0, self._available() - _RESERVE_BYTES) // need) if need else len(pending)
        chosen: list[RungState] = []
        device_taken = first.plan.engine != "cpu"
        for state in pending:
            if len(chosen) >= room:
                break
            on_device = state.plan.engine != "cpu"
            if self._exclusive and on_device and device_taken:
                continue
            device_taken |= on_device
            chosen.append(state)
        return chosen

    def _set_up(self, state: RungState) -> None:
        self._observer.phase(state.plan.rung, "set-up")
        with self._ending(state):
            message = state.wait_for("ready", partial(self._progress, state))
            state.environment = Environment.from_json(message["environment"])
            state.peak_rss = message["rss"]

    def _warm_up(self, state: RungState) -> None:
        if state.plan.rung in self._ended:
            return
        self._observer.phase(state.plan.rung, "warm-up")
        with self._ending(state):
            state.command("warm_up", "warm-up")
            message = state.wait_for("warm", partial(self._progress, state))
            state.peak_rss = max(state.peak_rss, message["rss"])
            sampling = state.plan.sampling
            steps = sampling.steps_per_round + max(1, sampling.steps_per_round // 2)
            state.round_s = message["seconds"] * steps

    def _sample(self, block: Sequence[RungState]) -> None:
        rounds = max((state.plan.sampling.rounds for state in block), default=0)
        for index in range(rounds):
            for name in round_order([state.plan.rung for state in self._alive(block)], index):
                self._sample_round(self._states[name], index, rounds, block)

    def _sample_round(
        self, state: RungState, index: int, rounds: int, block: Sequence[RungState]
    ) -> None:
        rung = state.plan.rung
        self._observer.phase(rung, f"round {index + 1} of {rounds}")
        with self._ending(state):
            begin = time.monotonic()
            state.command("round", f"round {index}", round=index)
            message = state.wait_for("round_done", partial(self._progress, state))
            state.round_s = time.monotonic() - begin
            self._directory.sampled(rung)
            remaining = (rounds - index - 1) * sum(other.round_s for other in self._alive(block))
            self._observer.sampled(rung, index + 1, rounds, message["seconds"], remaining)

    def _finish(self, state: RungState) -> None:
        self._observer.phase(state.plan.rung, "finishing")
        kind = "unknown" if state.environment is None else state.environment.device_kind
        facts, source, warnings = self._known.facts_for(state.plan, kind)
        with self._ending(state):
            state.command("finish", "finishing", facts=facts, source=source, warnings=warnings)
            state.wait_for("finished", partial(self._progress, state))
            self._end(state, "ok", None)
            state.stop()

    @contextmanager
    def _ending(self, state: RungState) -> Iterator[None]:
        """A rung that fails inside is noted as ended; the ladder goes on."""
        try:
            yield
        except RungEnded as ended:
            self._end(state, ended.failure.status, ended.failure.reason)

    def _end(self, state: RungState, status: Status, reason: str | None) -> None:
        self._ended.add(state.plan.rung)
        self._observer.ended(state.plan.rung, status, reason)
        self._directory.update()

    def _alive(self, states: Sequence[RungState]) -> list[RungState]:
        return [state for state in states if state.plan.rung not in self._ended]

    def _progress(self, state: RungState, message: Message) -> None:
        self._observer.stepped(
            state.plan.rung, message["phase"], message["step"], message["seconds"]
        )

    def _warn(self, message: str) -> None:
        self._directory.warn(message)
        self._observer.say(message)

    def _interrupted(self) -> None:
        """Seal what was under way, so that every rung of the ladder has a readable run."""
        for state in self._alive(list(self._states.values())):
            begun = f"during {state.phase}" if state.process is not None else "before it began"
            failure = Failure("failed", f"the ladder was interrupted {begun}")
            state.end(failure)
            self._end(state, failure.status, failure.reason)
        self._directory.warn("interrupted; --resume runs what is missing")


@contextmanager
def _terminate_like_ctrl_c() -> Iterator[None]:
    """SIGTERM and SIGHUP leave a readable ladder just as Ctrl-C does."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
