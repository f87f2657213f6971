"""Where in the user's program an op comes from: its line, its module, and the phase of the step.

Nothing is hooked: the frames that are on the stack anyway are read, from the op outwards. An op of
a backward pass gets the line of the forward op whose gradient it computes, found by the sequence
number that autograd gives both.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, cast

import pyarrow as pa

from tpu_perf.record.details import SITE_COLUMNS
from tpu_perf.record.store import table_of_rows

#: What a frame's code is, found once for each code object.
_USER, _LIBRARY, _MODULE_CALL, _OPTIMIZER, _ENGINE, _INVISIBLE = range(6)

#: Files of torch whose ops belong to the optimizer's part of a step.
_OPTIMIZER_FILES = ("/torch/optim/", "/nn/utils/clip_grad", "/torch/amp/grad_scaler")

_OWN = str(Path(__file__).parent.parent)
#: The step of a shipped workload stands in for a loop of the user's own.
_SHIPPED_STEPS = os.path.join(_OWN, "workloads", "")
#: Frames of the user that a site's stack holds at most.
STACK_FRAMES = 8
#: Forward ops remembered for the backward pass to come.
_REMEMBERED = 200_000

UNKNOWN = -1


class Sites:
    """The sites of one run, numbered in the order in which they are met."""

    def __init__(self) -> None:
        import torch

        self._torch = str(Path(torch.__file__).parent)
        self._kinds: dict[int, int] = {}
        self._codes: list[CodeType] = []  # keeps the ids in `_kinds` from being used again
        self._modules: list[Any] = []  # likewise for modules that keys hold
        self._known: dict[Any, int] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._backward_of: dict[tuple[int, str], int] = {}
        self._site_of_sequence: dict[int, int] = {}
        self._paths: dict[int, tuple[str, str]] = {}
        self._node: Callable[[], Any] = torch._C._current_autograd_node
        self._sequence: Callable[[], int] = torch._C._autograd._get_sequence_nr
        self._lock = threading.Lock()

    def here(self, depth: int = 2) -> int:
        """The site of the op that the caller `depth` frames up is about."""
        node = self._node()
        innermost = frame = cast("FrameType | None", sys._getframe(depth))
        kinds = self._kinds
        phase = "forward"
        module: Any = None
        user: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(id(code))
            if kind is None:
                kind = self._classify(code)
            if kind == _USER:
                if user is None:
                    user = frame
                    if module is not None:
                        break
            elif kind == _MODULE_CALL:
                if module is None:
                    module = frame.f_locals["self"]
                    if user is not None:
                        break
            elif kind == _OPTIMIZER:
                phase = "optimizer"
            elif kind == _ENGINE:
                phase = "backward"
                if node is not None:
                    break
            frame = frame.f_back
        if node is not None:
            if user is None or phase == "optimizer":
                return self._of_backward(node)
            phase = "backward"  # a checkpoint computes the forward again, or a custom backward
        if user is None:
            return UNKNOWN
        key = (id(user.f_code), user.f_lasti, id(module), phase)
        site = self._known.get(key)
        if site is None:
            site = self._add(key, innermost, module, phase)
        if node is None and phase == "forward":
            # The first op after autograd made a node is the node's; later ones may have none.
            self._site_of_sequence.setdefault(self._sequence() - 1, site)
        return site

    def forget_sequences(self) -> None:
        """Call between steps: the graph of an ended step is gone."""
        if len(self._site_of_sequence) > _REMEMBERED:
            self._site_of_sequence.clear()

    def table(self) -> pa.Table:
        """The site table so far."""
        return table_of_rows(SITE_COLUMNS, self._rows)

    def add(self, file: str, line: int, function: str, module: str, module_class: str,
            phase: str, stack: str) -> int:  # fmt: skip
        """A site that is known otherwise, such as from the graph of a compiled function."""
        key = (file, line, module, phase)
        with self._lock:
            site = self._known.get(key)
            if site is None:
                site = self._known[key] = len(self._rows)
                self._rows.append((site, file, line, function, module, module_class, phase, stack))
        return site

    def _of_backward(self, node: Any) -> int:
        forward = self._site_of_sequence.get(node._sequence_nr(), UNKNOWN)
        key = (forward, "" if forward != UNKNOWN else node.name())
        site = self._backward_of.get(key)
        if site is None:
            with self._lock:
                if forward == UNKNOWN:
                    row: tuple[Any, ...] = ("", -1, node.name(), "", "", "backward", "")
                else:
                    row = (*self._rows[forward][1:6], "backward", self._rows[forward][7])
                site = len(self._rows)
                self._rows.append((site, *row))
            self._backward_of[key] = site
        return site

    def _classify(self, code: CodeType) -> int:
        name = code.co_filename
        if name.startswith((_OWN, "<")) and not name.startswith(_SHIPPED_STEPS):
            kind = _INVISIBLE
        elif not name.startswith(self._torch):
            kind = _USER
        elif name.endswith("nn/modules/module.py") and code.co_name == "_wrapped_call_impl":
            kind = _MODULE_CALL
        elif any(part in name for part in _OPTIMIZER_FILES):
            kind = _OPTIMIZER
        elif name.endswith(("/torch/autograd/graph.py", "/torch/autograd/__init__.py")):
            kind = _ENGINE
        else:
            kind = _LIBRARY
        self._codes.append(code)
        self._kinds[id(code)] = kind
        return kind

    def _add(self, key: Any, innermost: FrameType | None, module: Any, phase: str) -> int:
        frame = innermost
        root = module
        stack: list[str] = []
        first: tuple[str, int, str] | None = None
        while frame is not None:
            kind = self._kinds.get(id(frame.f_code))
            if kind is None:
                kind = self._classify(frame.f_code)
            if kind == _MODULE_CALL:
                root = frame.f_locals["self"]
            elif kind == _OPTIMIZER and phase == "forward":
                phase = "optimizer"
            elif kind == _USER:
                place = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
                first = first or place
                if len(stack) < STACK_FRAMES:
                    stack.append(f"{place[0]}:{place[1]} {place[2]}")
            frame = frame.f_back
        path, kind_of_module = self._path(root, module)
        file, line, function = first or ("", -1, "")
        with self._lock:
            site = len(self._rows)
            row = (site, file, line, function, path, kind_of_module, phase, "\n".join(stack))
            self._rows.append(row)
            self._known[key] = site
            if module is not None:
                self._modules.append(module)
        return site

    def _path(self, root: Any, module: Any) -> tuple[str, str]:
        """The module's path from the outermost module in progress, and its class."""
        if module is None:
            return "", ""
        found = self._paths.get(id(module))
        if found is None:
            for name, child in root.named_modules():
                self._paths.setdefault(id(child), (name or ROOT, type(child).__name__))
                self._modules.append(child)
            found = self._paths.get(id(module), ("", type(module).__name__))
        return found


#: The path of the outermost module.
ROOT = "(root)"
