"""A forked child cannot use the device after its parent did: it says so instead of hanging.

XLA computes on threads, and no thread but the forking one survives a fork.
"""

from __future__ import annotations

import os
import warnings

from tpu_perf.runtime.modes import STATE, EagerMode

_started = False
_is_child = False


def device_started() -> None:
    """Note that this process has an XLA client: children forked from now on can have none."""
    global _started
    _started = True


def _after_fork() -> None:
    global _is_child
    if _started:
        _is_child = True
        STATE.mode = EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING  # the one whose ops look here


def in_bad_fork() -> bool:
    return _is_child


def refuse_in_child() -> None:
    """Raise RuntimeError in a forked child of a process that used the device."""
    if _is_child:
        raise RuntimeError(
            "device tpu was used before this process was forked from its parent, and cannot be "
            "used in the child: XLA's threads do not survive a fork. Start the process with the "
            "spawn method (torch.multiprocessing.get_context('spawn'), or "
            "DataLoader(multiprocessing_context='spawn')), or keep to CPU tensors in it"
        )


def watch_forks() -> None:
    """Called once, when the device is loaded."""
    os.register_at_fork(after_in_child=_after_fork)
    # JAX warns at every fork of a deadlock that the child would run into: ours is told instead.
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
