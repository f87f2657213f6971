"""What torch says of a program while it runs: its record_functions, which are the user's own,
and those of optimizers and data loaders.

Modules are left alone: a hook on them would make torch.compile compile again, and the place of an
op says its module.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tpu_perf.recorder.recorder import active

_clock = time.perf_counter_ns
_KINDS = (("Optimizer.", "optimizer"), ("enumerate(DataLoader)", "data"))
#: torch's own step marks are steps, not annotations.
_STEP_MARK = "ProfilerStep#"


@contextmanager
def record_annotations() -> Iterator[None]:
    """Record annotations into whichever recorder is in force, while the block lasts."""
    undo = _record_functions()
    try:
        yield
    finally:
        undo()


def annotate(name: str, kind: str, start_ns: int) -> None:
    """Record a span that ends now."""
    recorder = active.recorder
    if recorder is not None:
        thread = 0 if threading.current_thread() is threading.main_thread() else -1
        recorder.annotation((start_ns, _clock(), name, kind, thread, recorder.step))


def _record_functions() -> Callable[[], None]:
    from torch.autograd.profiler import record_function

    enter: Any = record_function.__enter__
    leave: Any = record_function.__exit__

    def entered(annotation: Any) -> Any:
        annotation.tpu_perf_start_ns = _clock()
        return enter(annotation)

    def left(annotation: Any, *error: Any) -> Any:
        result = leave(annotation, *error)
        start = getattr(annotation, "tpu_perf_start_ns", None)
        name = annotation.name
        if start is not None and not name.startswith(_STEP_MARK):
            kind = next((kind for part, kind in _KINDS if name.startswith(part)), "user")
            annotate(name, kind, start)
        return result

    setattr(record_function, "__enter__", entered)  # noqa: B010 - typed as a method
    setattr(record_function, "__exit__", left)  # noqa: B010

    def undo() -> None:
        setattr(record_function, "__enter__", enter)  # noqa: B010
        setattr(record_function, "__exit__", leave)  # noqa: B010

    return undo
