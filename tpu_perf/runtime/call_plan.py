"""A call plan: everything about one op on arguments of one geometry, worked out once.

The key of a plan is the geometry (size, stride, offset, spec) of every tensor argument, every
static argument with its type, and which arguments share a buffer. The plan says what a program
must compute and how its results become tensors; modes decide when it runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch

from tpu_perf.runtime.buffers import Spec, wrap
from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.torch_private import alias

_uids = itertools.count()
#: Every plan of the process; they live as long as it does.
PLANS: list[CallPlan] = []

#: Arrays of the input slots, then numbers, then seed and offset -> fresh outputs, then the new
#: arrays of the mutated slots.
Compute = Callable[..., list[jax.Array]]


@dataclass(frozen=True, slots=True)
class Fresh:
    """A new output tensor: spec of its buffer and its geometry over it."""

    spec: Spec
    size: tuple[int, ...]
    stride: tuple[int, ...]
    contiguous: bool

    def tensor(self, array: jax.Array | None) -> torch.Tensor:
        """The output over its array, or over a value still to come."""
        made = wrap(array, self.spec)
        return made if self.contiguous else alias(made, self.size, self.stride, 0)


@dataclass(eq=False, slots=True)
class CallPlan:
    """See the module's sentence. `slots` are distinct buffers; `number_kinds` the Python types of
    the run-time numbers in order; `mutated` the slots whose arrays the program replaces."""

    op: str
    key_text: str
    slots: tuple[Spec, ...]
    number_kinds: tuple[type, ...]
    random: bool
    compute: Compute
    #: Slots whose arrays the program reads; a slot that is wholly overwritten is not among them.
    reads: tuple[int, ...]
    fresh: tuple[Fresh, ...]
    mutated: tuple[int, ...]
    #: Template of the return value: ("fresh", i), ("argument", i) (i-th tensor argument), a list
    #: of such, or None.
    returns: Any
    #: Names and arguments of the call as JSON (`call_description.of_call`).
    described: tuple[str, str] = ("[]", "[]")
    uid: int = field(default_factory=lambda: next(_uids))
    programs: dict[Any, Any] = field(default_factory=dict)  # donation pattern -> Program
    #: The same programs where the generated kernels find them: without and with donation.
    program: Any = None
    donating: Any = None
    written: frozenset[int] = frozenset()  # the mutated slots
    single: bool = False  # one fresh output, returned as such
    bytes_in: int = 0
    bytes_out: int = 0

    def __post_init__(self) -> None:
        PLANS.append(self)
        self.written = frozenset(self.mutated)
        self.single = len(self.fresh) == 1 and self.returns == ("fresh", 0)

    def in_avals(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shapes and dtypes of all program inputs: slots, numbers, seed and offset."""
        avals = [(s.shape, numpy_dtype(s.dtype)) for s in (self.slots[i] for i in self.reads)]
        avals += [((), NUMBER_DTYPES[kind]) for kind in self.number_kinds]
        if self.random:
            avals += [((), np.dtype(np.int64)), ((), np.dtype(np.int64))]
        return avals


NUMBER_DTYPES: dict[type, np.dtype[Any]] = {
    float: np.dtype(np.float64),
    int: np.dtype(np.int64),
    bool: np.dtype(np.bool_),
    complex: np.dtype(np.complex128),
}


def assemble(returns: Any, fresh: Sequence[torch.Tensor], tensors: Sequence[Any]) -> Any:
    """Build the op's return value from its template."""
    if returns is None:
        return None
    if isinstance(returns, list):
        return [assemble(r, fresh, tensors) for r in returns]
    if returns[0] == "fresh":
        return fresh[returns[1]]
    if returns[0] == "argument":
        return tensors[returns[1]]
    if returns[0] == "constant":
        return returns[1]
    return tuple(assemble(r, fresh, tensors) for r in returns[1])
