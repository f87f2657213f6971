"""Which steps of a job are recorded, and how: by the user's schedule, or by what the steps show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tpu_perf.errors import ConfigError

#: Steps under XLA's profiler.
PROBE_STEPS = 2


@dataclass(frozen=True, slots=True)
class Phase:
    """A step's phase (record.events.STEP_COLUMNS; `wait`: not recorded) and its round, in which
    timed steps are paired with unrecorded (`bare`) ones; -1 outside rounds."""

    name: str
    round: int = -1


class Phases(Protocol):
    """Decides step by step."""

    def next(self, compiles: Sequence[int]) -> Phase:
        """The phase of the step to come; `compiles` has an entry for every step before it."""
        ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """torch.profiler's words: leave `skip_first` steps alone, then `repeat` times (0: without
    end) wait, warm up and record `active` steps. After the last cycle two steps run under XLA's
    profiler.

    Raises ConfigError for numbers that make no schedule.
    """

    wait: int = 0
    warmup: int = 0
    active: int = 1
    repeat: int = 1
    skip_first: int = 0

    def __post_init__(self) -> None:
        if min(self.wait, self.warmup, self.repeat, self.skip_first) < 0 or self.active < 1:
            raise ConfigError(
                f"{self} is no schedule: active must be at least 1, the others at least 0"
            )

    def next(self, compiles: Sequence[int]) -> Phase:
        step = len(compiles) - self.skip_first
        if step < 0:
            return Phase("wait")
        length = self.wait + self.warmup + self.active
        cycle, within = divmod(step, length)
        if self.repeat and cycle >= self.repeat:
            return Phase("probe" if step < self.repeat * length + PROBE_STEPS else "wait")
        if within < self.wait:
            return Phase("wait")
        if not compiles:
            return Phase("first")
        return Phase("warmup") if within < self.wait + self.warmup else Phase("timed", cycle)


class Adaptive:
    """Without a schedule: the first step, steps until one compiles nothing, three timed ones, two
    under XLA's profiler, then timed ones to the end, some of them paired with unrecorded ones."""

    MOST_WARMUP = 20
    _BEFORE_PROBES = 3
    _ROUND = ("timed", "timed", "timed", "bare")
    #: Enough pairs for an interval; a longer job is recorded without gaps from then on.
    _PAIRED_ROUNDS = 15

    def __init__(self) -> None:
        self._warm_at: int | None = None

    def next(self, compiles: Sequence[int]) -> Phase:
        step = len(compiles)
        if step == 0:
            return Phase("first")
        if self._warm_at is None:
            quiet = step > 1 and compiles[-1] == 0
            if not quiet and step <= self.MOST_WARMUP:
                return Phase("warmup")
            self._warm_at = step
        since = step - self._warm_at
        if since < self._BEFORE_PROBES:
            return Phase("timed")
        if since < self._BEFORE_PROBES + PROBE_STEPS:
            return Phase("probe")
        number, within = divmod(since - self._BEFORE_PROBES - PROBE_STEPS, len(self._ROUND))
        if number >= self._PAIRED_ROUNDS:
            return Phase("timed", number)
        order = self._ROUND if number % 2 == 0 else self._ROUND[::-1]  # drift favours neither
        return Phase(order[within], number)
