"""Eager modes, and which one each thread is in."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from tpu_perf.errors import EnvironmentProblem


class EagerMode(Enum):
    """How ops run. Names and meaning are TorchTPU's."""

    DEFER_NEVER = 0  # Strict: one program per op, asynchronous
    DEFER_NEVER_AND_LAUNCH_BLOCKING = 1  # Debug: one at a time, checked
    DEFER_AND_FUSE = 2  # ops are recorded, cut into programs, and run


_TRUE = ("1", "true", "yes", "on")


def flag(*names: str) -> bool:
    """Whether the first of these environment variables that is set is true."""
    for name in names:
        value = os.environ.get(name)
        if value is not None:
            return value.strip().lower() in _TRUE
    return False


def mode_from_environment() -> EagerMode:
    """The process's first mode: launch-blocking wins over defer-and-fuse, as in TorchTPU."""
    if flag("TORCH_TPU_LAUNCH_BLOCKING", "TPU_LAUNCH_BLOCKING"):
        return EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    if flag("TORCH_TPU_DEFER_AND_FUSE", "TPU_DEFER_AND_FUSE"):
        return EagerMode.DEFER_AND_FUSE
    return EagerMode.DEFER_NEVER


class State:
    """The mode in force (process-wide, as in TorchTPU) and what else dispatch looks at."""

    __slots__ = ("capturing", "cpu_fallback", "mode")

    def __init__(self) -> None:
        self.mode = mode_from_environment()
        self.cpu_fallback = flag("TORCH_TPU_CPU_FALLBACK", "TPU_CPU_FALLBACK")
        self.capturing = False


STATE = State()
_switch_lock = threading.RLock()


def switch(mode: EagerMode) -> None:
    """Change the mode of the process; what was deferred so far runs first."""
    if mode not in list(EagerMode):
        names = ", ".join(m.name for m in EagerMode)
        raise TypeError(f"eager mode must be one of torch.tpu.EagerMode.{{{names}}}, not {mode!r}")
    from tpu_perf.runtime.forking import refuse_in_child

    refuse_in_child()
    if STATE.capturing:
        raise EnvironmentProblem("the eager mode cannot change while a whole step is captured")
    from tpu_perf.runtime.segment import flush_all

    with _switch_lock:
        reason = "debug_mode" if mode is EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING else "unknown"
        flush_all(reason)
        STATE.mode = mode


@contextmanager
def mode_set_to(mode: EagerMode) -> Iterator[None]:
    """Run a block in a mode and return to the one before."""
    before = STATE.mode
    switch(mode)
    try:
        yield
    finally:
        switch(before)
