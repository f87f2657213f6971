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
    begun: dict[int, int] = {}

    def entered(annotation: Any) -> None:
        begun[id(annotation)] = _clock()

    def left(annotation: Any) -> None:
        start = begun.pop(id(annotation), None)
        name = annotation.name
        if start is not None and not name.startswith(_STEP_MARK):
            kind = next((kind for part, kind in _KINDS if name.startswith(part)), "user")
            annotate(name, kind, start)

    undo = watch_record_functions(entered, left)
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


def watch_record_functions(
    entered: Callable[[Any], None], left: Callable[[Any], None]
) -> Callable[[], None]:
    """Call these with every torch.profiler.record_function as it begins and after it has ended.
    Returns what undoes it; watchers are undone in the reverse order of their coming."""
    from torch.autograd.profiler import record_function

    enter: Any = record_function.__enter__
    leave: Any = record_function.__exit__

    def on_enter(annotation: Any) -> Any:
        entered(annotation)
        return enter(annotation)

    def on_exit(annotation: Any, *error: Any) -> Any:
        result = leave(annotation, *error)
        left(annotation)
        return result

    setattr(record_function, "__enter__", on_enter)  # noqa: B010 - typed as a method
    setattr(record_function, "__exit__", on_exit)  # noqa: B010

    def undo() -> None:
        setattr(record_function, "__enter__", enter)  # noqa: B010
        setattr(record_function, "__exit__", leave)  # noqa: B010

    return undo
