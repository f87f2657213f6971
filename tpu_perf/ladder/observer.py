"""What the ladder tells while it runs; the command line shows it."""

from __future__ import annotations

from typing import Protocol

from tpu_perf.record.run import Status


class Observer(Protocol):
    """Called in the parent, between messages of the workers."""

    def phase(self, rung: str, phase: str) -> None:
        """A rung (or the reference) entered a phase."""
        ...

    def stepped(self, rung: str, phase: str, step: int, seconds: float) -> None:
        """One warm-up step is done."""
        ...

    def sampled(
        self, rung: str, round_number: int, rounds: int, seconds: float | None, remaining_s: float
    ) -> None:
        """One round is done; `seconds` is the median of its steps."""
        ...

    def ended(self, rung: str, status: Status, reason: str | None) -> None:
        """A rung has its run."""
        ...

    def say(self, message: str) -> None:
        """Something worth a line of its own."""
        ...


class Silent:
    """An observer that shows nothing."""

    def phase(self, rung: str, phase: str) -> None: ...

    def stepped(self, rung: str, phase: str, step: int, seconds: float) -> None: ...

    def sampled(
        self, rung: str, round_number: int, rounds: int, seconds: float | None, remaining_s: float
    ) -> None: ...

    def ended(self, rung: str, status: Status, reason: str | None) -> None: ...

    def say(self, message: str) -> None: ...
