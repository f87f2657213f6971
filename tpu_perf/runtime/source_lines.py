"""The user's line that is running: where an op, a flush or a compile comes from."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType

#: Frames of these packages are not the user's.
_LIBRARY_PARTS = ("site-packages", "dist-packages", "/lib/python", "<")
_OWN = str(Path(__file__).parent.parent)
#: The step of a shipped workload stands in for a loop of the user's own.
_SHIPPED_STEPS = os.path.join(_OWN, "workloads", "")
#: The function of torch in which a thread waits for its backward pass.
_WAITS_FOR_BACKWARD = "_engine_run_backward"


def user_line() -> str | None:
    """`file:line` of the nearest frame that belongs to neither a library nor this package, None
    if there is none. On a thread of autograd it is the line that called for the backward pass,
    if just one thread did."""
    frame = sys._getframe(1)
    line, library = _of(frame)
    if line is None and threading.current_thread() is not threading.main_thread():
        line = _line_of_backward()
    return line or library


def _of(frame: FrameType | None) -> tuple[str | None, str | None]:
    """The user's line and the line of the nearest library other than torch, outwards from a
    frame."""
    nearest_library = None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_SHIPPED_STEPS):
            # A library inside it says more: the model's code.
            return nearest_library or f"{name}:{frame.f_lineno}", nearest_library
        if not name.startswith((_OWN, "<")):
            if not any(part in name for part in _LIBRARY_PARTS):
                return f"{name}:{frame.f_lineno}", nearest_library
            if nearest_library is None and "/torch/" not in name and "site-packages" in name:
                nearest_library = f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None, nearest_library


def _line_of_backward() -> str | None:
    here = threading.get_ident()
    waiting = [
        frame for ident, frame in sys._current_frames().items()
        if ident != here and _waits_for_backward(frame)
    ]  # fmt: skip
    return _of(waiting[0])[0] if len(waiting) == 1 else None


def _waits_for_backward(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == _WAITS_FOR_BACKWARD:
            return True
        frame = frame.f_back
    return False
