"""The operator database: which ops there are, and their sample inputs on the CPU."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.conformance.placement import Mover, moved_keywords

#: Results of these are whatever memory held: only their form is compared.
UNINITIALISED = frozenset({
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    "resize_", "resize_as_",
})  # fmt: skip
#: Torch wants tensors among the arguments of these on the CPU, whatever the input's device.
ARGUMENTS_ON_HOST = frozenset({"tensor_split"})


@functools.cache
def database() -> dict[str, Any]:
    """Every OpInfo of torch.testing by its full name."""
    import torch.testing._internal.common_methods_invocations

    invocations: Any = torch.testing._internal.common_methods_invocations

    # The database seeds random ops inside the call; here the caller does.
    invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {op.full_name: op for op in invocations.op_db}


@dataclass(frozen=True, slots=True)
class Sample:
    """One call: arguments on the CPU, and copies of them made for every run."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: What of the result is differentiated.
    differentiated: Callable[[Any], Any]
    broadcasts_input: bool
    is_factory: bool
    arguments_on_host: bool
    summary: str

    def on_cpu(self) -> Call:
        return Call(*Mover("cpu").move((self.input, self.args, self.kwargs)))

    def on_device(self) -> Call:
        if self.arguments_on_host:
            value, args, kwargs = Mover().move(self.input), self.args, self.kwargs
        else:
            value, args, kwargs = Mover().move((self.input, self.args, self.kwargs))
        return Call(value, args, moved_keywords(kwargs, self.is_factory))


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of one run."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def of(self, function: Callable[..., Any]) -> Any:
        return function(self.input, *self.args, **self.kwargs)


def seed_everything(seed: int = 0) -> None:
    """Samples draw from all three."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def sample_of(op: Any, given: Any) -> Sample:
    return Sample(
        given.input, tuple(given.args), dict(given.kwargs),
        getattr(given, "output_process_fn_grad", None) or (lambda x: x),
        bool(getattr(given, "broadcasts_input", False)),
        bool(op.is_factory_function), op.name in ARGUMENTS_ON_HOST, given.summary(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """Which samples of an op to take: all, or at most `few` spread evenly over them."""

    few: int | None = None

    def of(self, given: Iterable[Any]) -> list[Any]:
        every = list(given)
        if self.few is None or len(every) <= self.few:
            return every
        step = (len(every) - 1) / max(1, self.few - 1)
        return [every[round(i * step)] for i in range(self.few)]


def samples(
    op: Any, dtype: torch.dtype, choice: Choice, requires_grad: bool = False
) -> Iterator[Sample]:
    """The samples of an op, the same on every call."""
    seed_everything()
    for given in choice.of(op.sample_inputs("cpu", dtype, requires_grad=requires_grad)):
        yield sample_of(op, given)


def noncontiguous_samples(op: Any, dtype: torch.dtype, choice: Choice) -> Iterator[Sample]:
    """The samples with their tensors strided."""
    seed_everything()
    for given in choice.of(op.sample_inputs("cpu", dtype)):
        yield sample_of(op, given.noncontiguous())


def error_samples(op: Any) -> Iterator[tuple[Sample, type[BaseException]]]:
    """Inputs that torch refuses, with the type of its error."""
    seed_everything()
    for given in op.error_inputs("cpu"):
        yield sample_of(op, given.sample_input), given.error_type
