"""Records the aten calls that a function makes on the CPU, as rows of a run's calls table."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tpu_perf.analysis.op_flops import Call, parse_call


def _plain(value: Any) -> Any:
    """As `record.details.CALL_COLUMNS` has it."""
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        schema = func._schema.arguments
        given = dict(zip((one.name for one in schema), args, strict=False)) | (kwargs or {})
        values = [
            given.get(one.name, one.default_value if one.has_default_value() else None)
            for one in schema
        ]
        results = out if isinstance(out, (list, tuple)) else [out]
        self.calls.append(
            parse_call(
                func.name() if "." in func.name() else f"{func.name()}.default",
                json.dumps([one.name for one in schema]),
                json.dumps(_plain(values)),
                json.dumps(_plain([one for one in results if one is not None])),
            )
        )
        return out


def recorded(function: Callable[[], Any]) -> list[Call]:
    """The calls that reach a device below autograd, in order."""
    recording = _Recording()
    with recording:
        function()
    return recording.calls
