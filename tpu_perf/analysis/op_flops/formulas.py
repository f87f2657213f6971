"""The registry of FLOP formulas: an op is added by one entry in the file of its family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tpu_perf.analysis.op_flops.call import Call
from tpu_perf.registry import Registry

Attention = Literal["causal", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """FLOPs of one call. `model` is what the mathematics needs; `executed` is what the op itself
    does where that is more (attention's backward computes the scores again). `note` says what the
    count had to assume."""

    model: float
    executed: float | None = None
    note: str | None = None


#: From a call and how causal attention counts, the FLOPs. May raise CallFormatError or Unknown.
Formula = Callable[[Call, Attention], "Counted | float"]


class Unknown(ValueError):
    """The op has products inside, and this call does not say how many."""


FORMULAS: Registry[Formula] = Registry("FLOP formula", "tpu_perf.analysis.op_flops")


def formula(*names: str) -> Callable[[Formula], Formula]:
    """Register a function as the formula of these aten ops (names without namespace, overload)."""

    def register(function: Formula) -> Formula:
        for name in names:
            FORMULAS.add(name if "::" in name else f"aten::{name}", function)
        return function

    return register
