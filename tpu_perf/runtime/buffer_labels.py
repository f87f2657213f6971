"""What the live buffers of a training job are: parameters, gradients, optimizer state."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tpu_perf.runtime.buffers import buffer_of

#: A row of record.details.BUFFER_LABEL_COLUMNS.
Label = tuple[int, int, str, str, int]


def label_buffers() -> list[Label]:
    """Labels of everything on the device that a live nn.Module or torch optimizer holds.

    The objects are found through the garbage collector, so nothing of the user's program need be
    known; call it while nothing is timed (it looks at every object, some 50 ms).
    """
    modules, optimizers = _found()
    now = time.perf_counter_ns()
    rows: dict[int, Label] = {}
    names: dict[int, str] = {}

    def add(tensor: Any, category: str, name: str) -> None:
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "tpu":
            return
        buffer = buffer_of(tensor)
        if buffer.counted:
            rows.setdefault(id(buffer), (now, id(buffer), category, name, buffer.spec.nbytes))

    for root in _roots(modules):
        for name, parameter in root.named_parameters():
            names.setdefault(id(parameter), name)
            add(parameter, "parameter", name)
            add(parameter.grad, "gradient", name)
        for name, tensor in root.named_buffers():
            add(tensor, "model_buffer", name)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = names.get(id(parameter), "")
                add(parameter, "parameter", name)
                add(parameter.grad, "gradient", name)
                state = optimizer.state.get(parameter, {})
                for key, value in state.items():
                    add(value, "optimizer_state", f"{name}.{key}" if name else str(key))
    return list(rows.values())


def parameter_count() -> int | None:
    """Parameters of all live modules, each counted once; None if there are none."""
    modules, _ = _found()
    seen = {id(p): p.numel() for root in _roots(modules) for p in root.parameters()}
    return sum(seen.values()) or None


def _found() -> tuple[list[torch.nn.Module], list[torch.optim.Optimizer]]:
    modules: list[torch.nn.Module] = []
    optimizers: list[torch.optim.Optimizer] = []
    for one in gc.get_objects():
        kind = type(one)  # not isinstance: lazy objects answer to __class__ by importing things
        if issubclass(kind, torch.nn.Module):
            modules.append(one)
        elif issubclass(kind, torch.optim.Optimizer):
            optimizers.append(one)
    return modules, optimizers


def _roots(modules: Iterable[torch.nn.Module]) -> Iterator[torch.nn.Module]:
    """The modules that no other holds, and that are not a compiled form of another."""
    listed = [m for m in modules if isinstance(getattr(m, "_modules", None), dict)]
    children = {id(child) for module in listed for child in module._modules.values()}
    for module in listed:
        if id(module) not in children and not isinstance(module, torch.jit.ScriptModule):
            original = getattr(module, "_orig_mod", None)
            yield original if isinstance(original, torch.nn.Module) else module
