"""Where the steps of a job begin and end, found without changing it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

from tpu_perf.errors import ConfigError
from tpu_perf.recorder.annotations import watch_record_functions

NAMED = ("auto", "profiler", "optimizer", "explicit")


class StepMarks(Protocol):
    """What a finder calls."""

    def boundary(self) -> None:
        """A step ends and the next begins."""
        ...

    def begin(self) -> None: ...

    def end(self) -> None: ...


class StepFinder:
    """`how`: `profiler` (torch.profiler's step()), `optimizer` (the first optimizer's step()),
    `explicit` (tpu_perf.step), `auto` (whichever of these the job has, in the order explicit,
    profiler, optimizer), or a regular expression: a step is then a torch.profiler.record_function
    whose name matches, or a forward of a module whose class name does.

    Raises ConfigError for an expression that is none.
    """

    def __init__(self, how: str, marks: StepMarks) -> None:
        self._how = how
        self._marks = marks
        self._undo: list[Callable[[], None]] = []
        #: What is listened to; "auto" narrows it as soon as a better sign is seen.
        self._rank = 0
        self._optimizer: Any = None
        self._inside: list[str] = []
        self._pattern: re.Pattern[str] | None = None
        self.found = "none"
        if how not in NAMED:
            try:
                self._pattern = re.compile(how)
            except re.error as error:
                raise ConfigError(
                    f"--steps {how!r} is neither of {', '.join(NAMED)} nor a regular expression: "
                    f"{error}"
                ) from None

    def install(self) -> None:
        if self._pattern is not None:
            self._watch_annotations()
            self._watch_modules()
            return
        if self._how in ("auto", "profiler"):
            self._watch_profilers()
        if self._how in ("auto", "optimizer"):
            self._watch_optimizers()

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def explicit(self, begins: bool) -> None:
        """A step that the program itself marks."""
        if self._how not in ("auto", "explicit"):
            return
        self._heard(3, "tpu_perf.step")
        if begins:
            self._marks.begin()
        else:
            self._marks.end()

    def mark(self) -> None:
        """`run.step()`: the program says that a step is over."""
        if self._how in ("auto", "explicit") and self._heard(3, "run.step()"):
            self._marks.boundary()

    def _heard(self, rank: int, what: str) -> bool:
        """Whether this sign counts: the best kind seen so far does."""
        if rank > self._rank:
            self._rank, self.found = rank, what
        return rank == self._rank

    def _watch_profilers(self) -> None:
        import torch

        original = torch.profiler.profile.step

        def step(profiler: Any) -> None:
            original(profiler)
            if self._heard(2, "torch.profiler's step()"):
                self._marks.boundary()

        setattr(torch.profiler.profile, "step", step)  # noqa: B010 - typed as a method
        self._undo.append(lambda: setattr(torch.profiler.profile, "step", original))

    def _watch_optimizers(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self._optimizer is None:
                self._optimizer = optimizer  # of several that take turns one marks the step
            if optimizer is self._optimizer:
                name = type(optimizer).__name__
                if self._heard(1, f"{name}.step()"):
                    self._marks.boundary()

        self._undo.append(register_optimizer_step_post_hook(stepped).remove)

    def _watch_annotations(self) -> None:
        def entered(annotation: Any) -> None:
            self._enter(annotation.name, "record_function")

        def left(annotation: Any) -> None:
            self._leave(annotation.name)

        self._undo.append(watch_record_functions(entered, left))

    def _watch_modules(self) -> None:
        from torch.nn.modules.module import (
            register_module_forward_hook,
            register_module_forward_pre_hook,
        )

        def before(module: Any, args: Any) -> None:
            self._enter(type(module).__name__, "forward of")

        def after(module: Any, args: Any, output: Any) -> None:
            self._leave(type(module).__name__)

        self._undo.append(register_module_forward_pre_hook(before).remove)
        self._undo.append(register_module_forward_hook(after, always_call=True).remove)

    def _enter(self, name: str, what: str) -> None:
        assert self._pattern is not None
        if not self._pattern.search(name):
            return
        self._inside.append(name)
        if len(self._inside) == 1:
            self.found = f"{what} {name!r}"
            self._marks.begin()

    def _leave(self, name: str) -> None:
        if self._inside and self._inside[-1] == name:
            self._inside.pop()
            if not self._inside:
                self._marks.end()
