"""One row of the calls table as arguments with names: shapes, dtypes and plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class CallFormatError(ValueError):
    """A row of the calls table that a formula cannot read; counted as unknown, never as zero."""


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """Dtype and shape of a tensor, nothing of its values."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An aten op on arguments of one geometry. `op` has the overload: aten::mm.default."""

    op: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    results: Sequence[Any] = ()

    @property
    def name(self) -> str:
        """The op without its overload: aten::mm."""
        return base_name(self.op)

    def get(self, name: str, default: Any = None) -> Any:
        value = self.arguments.get(name)
        return default if value is None else value

    def given(self, *names: str) -> Any:
        """The argument under the first of these names that it has. Raises CallFormatError."""
        for name in names:
            if self.arguments.get(name) is not None:
                return self.arguments[name]
        raise CallFormatError(f"{self.op} has no argument {' or '.join(names)}")

    def shape(self, *names: str) -> tuple[int, ...]:
        """The shape of a tensor argument. Raises CallFormatError if it is none."""
        value = self.given(*names)
        if not isinstance(value, TensorArgument):
            raise CallFormatError(f"{self.op}: {names[0]} is {value!r}, not a tensor")
        return value.shape

    def result_shape(self, index: int = 0) -> tuple[int, ...] | None:
        """The shape of a result; None where the row does not say."""
        if index < len(self.results) and isinstance(self.results[index], TensorArgument):
            shape: tuple[int, ...] = self.results[index].shape
            return shape
        return None


def base_name(op: str) -> str:
    """`aten::add.Tensor` -> `aten::add`."""
    namespace, _, rest = op.rpartition("::")
    return f"{namespace or 'aten'}::{rest.partition('.')[0]}"


def parse_call(op: str, names: str, arguments: str, results: str) -> Call:
    """A row of the calls table (`record.details.CALL_COLUMNS`).

    Raises CallFormatError where the JSON is not what that table promises.
    """
    try:
        keys, values = json.loads(names), json.loads(arguments)
        made = json.loads(results) if results else []
    except (TypeError, ValueError) as error:
        raise CallFormatError(f"the arguments of {op} are not JSON: {error}") from None
    if not isinstance(keys, list) or not isinstance(values, list):
        raise CallFormatError(f"the arguments of {op} are not lists")
    named = {str(key): _value(value) for key, value in zip(keys, values, strict=False)}
    outputs = made if isinstance(made, list) else [made]
    return Call(op=op, arguments=named, results=[_value(value) for value in outputs])


def _value(value: Any) -> Any:
    if isinstance(value, dict) and "shape" in value:
        return TensorArgument(str(value.get("dtype", "")), tuple(int(n) for n in value["shape"]))
    if isinstance(value, list):
        return [_value(item) for item in value]
    return value
