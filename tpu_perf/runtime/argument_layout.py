"""Where in an op's arguments its tensors and run-time numbers go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tpu_perf.runtime.binding import Bound
from tpu_perf.runtime.signatures import NUMBER, NUMBERS, TENSOR, TENSORS, Signature, is_default


class Layout:
    """An op's arguments with holes for what a program is given when it runs."""

    def __init__(self, signature: Signature, bound: Bound) -> None:
        self.items: list[tuple[str, bool, bool, Any]] = []
        for argument, value in zip(signature.arguments, bound.values, strict=True):
            written_out = argument.is_out
            if argument.kind == TENSOR:
                entry: Any = _mark(value)
            elif argument.kind == TENSORS and value is not None:
                entry = [_mark(v) for v in value]
            elif argument.kind == NUMBER and not is_default(value, argument.default):
                entry = _NUMBER_MARK
            elif argument.kind == NUMBERS:
                entry = [_NUMBER_MARK] * len(value)
            elif argument.name == "generator":
                entry = None
            else:
                entry = value
            self.items.append((argument.name, argument.keyword_only, written_out, entry))

    def fill(
        self, values: Sequence[Any], numbers: Sequence[Any], drop_out: bool = False
    ) -> tuple[list[Any], dict[str, Any]]:
        tensors, scalars = iter(values), iter(numbers)

        def put(entry: Any) -> Any:
            if entry is _TENSOR_MARK:
                return next(tensors)
            if entry is _NUMBER_MARK:
                return next(scalars)
            if isinstance(entry, list):
                return [put(e) for e in entry]
            return entry

        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, keyword, written_out, entry in self.items:
            value = put(entry)
            if (drop_out and written_out) or name == "generator":
                continue
            if keyword:
                kwargs[name] = value
            else:
                args.append(value)
        return args, kwargs


_TENSOR_MARK = object()
_NUMBER_MARK = object()


def _mark(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _TENSOR_MARK
    return None if value is None else _NUMBER_MARK
