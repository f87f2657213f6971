"""What the schema of an aten overload says about its arguments, and its functional form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tpu_perf.recorder.packing import name_number
from tpu_perf.runtime.lowerings.registry import TABLE, Lowering

if TYPE_CHECKING:
    from tpu_perf.runtime.call_plan import CallPlan

#: How an argument is treated: a tensor, a list of tensors, a number that may become a run-time
#: argument, a list of such numbers, or part of the key.
TENSOR, TENSORS, NUMBER, NUMBERS, STATIC, IGNORED = "T", "L", "N", "M", "S", "I"


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    kind: str
    default: Any
    has_default: bool
    keyword_only: bool
    written: bool
    is_out: bool


@dataclass(eq=False, slots=True)
class Signature:
    """One overload as the dispatcher calls it."""

    op: torch._ops.OpOverload
    name: str  # "add_.Tensor"
    arguments: tuple[Argument, ...]
    positional: int
    functional: str  # the table's name for what it computes: "add.Tensor"
    foreach: bool  # the functional form applies element by element over tensor lists
    mutable: bool
    is_out: bool
    lowering: Lowering | None
    plans: dict[Any, CallPlan] = field(default_factory=dict)
    check: Callable[..., None] | None = field(init=False)
    number: int = field(init=False)  # stands for `display` in recorded events

    def __post_init__(self) -> None:
        self.check = None if self.lowering is None else self.lowering.check
        self.number = name_number(self.display)

    @property
    def display(self) -> str:
        return f"aten::{self.name}"


def is_default(value: Any, default: Any) -> bool:
    """Whether a number is its parameter's default, type included: such numbers are part of the
    program instead of an argument of it."""
    return value is None or (value == default and type(value) is type(default))


def signature_of(op: torch._ops.OpOverload) -> Signature:
    """Read the schema of an overload and find its entry in the lowering table."""
    schema = op._schema
    name = op._name.removeprefix("aten::")
    if "." not in name:
        name += ".default"
    functional, foreach = functional_form(op)
    lowering = TABLE.get(functional)
    static = lowering is not None and lowering.static_numbers
    arguments = tuple(_argument(a, static, lowering, i) for i, a in enumerate(schema.arguments))
    return Signature(
        op=op,
        name=name,
        arguments=arguments,
        positional=sum(not a.keyword_only for a in arguments),
        functional=functional,
        foreach=foreach,
        mutable=any(a.written for a in arguments),
        is_out=any(a.is_out for a in schema.arguments),
        lowering=lowering,
    )


def _argument(a: Any, static: bool, lowering: Lowering | None, position: int) -> Argument:
    kind = str(a.type)
    written = a.alias_info is not None and a.alias_info.is_write
    if lowering is not None and position in lowering.mutates:
        written = True
    if kind in ("Tensor", "Optional[Tensor]"):
        treated = TENSOR
    elif kind in ("List[Tensor]", "List[Optional[Tensor]]", "Optional[List[Tensor]]"):
        treated = TENSORS
    elif kind in ("number", "Optional[number]", "float", "Optional[float]"):
        treated = STATIC if static else NUMBER
    elif kind in ("List[number]", "List[float]"):
        treated = STATIC if static else NUMBERS
    elif kind in ("Optional[Generator]", "Generator"):
        treated = IGNORED
    else:
        treated = STATIC
    has_default = a.has_default_value()
    return Argument(a.name, treated, a.default_value if has_default else None, has_default,
                    a.kwarg_only, written, a.is_out)  # fmt: skip


def functional_form(op: torch._ops.OpOverload) -> tuple[str, bool]:
    """The table name of what this overload computes, and whether over lists element by element.

    `add_.Tensor` and `add.out` compute `add.Tensor`; `_foreach_add_.List` computes `add.Tensor`
    for each pair. An overload with no functional sibling is its own form.
    """
    name = op._name.removeprefix("aten::")
    base, _, overload = name.partition(".")
    own = f"{base}.{overload or 'default'}"
    if own in TABLE:
        return own, False
    if base.startswith("_foreach_"):
        element = _element_form(base.removeprefix("_foreach_").removesuffix("_"), overload)
        return (element, True) if element in TABLE else (own, False)
    plain = base[:-1] if base.endswith("_") and not base.endswith("__") else base
    is_out = any(a.is_out for a in op._schema.arguments)
    wanted = _essence(op._schema, is_out)
    packet = getattr(torch.ops.aten, plain, None)
    if packet is None:
        return own, False
    for candidate in packet.overloads():
        other = getattr(packet, candidate)
        outs = any(a.is_out for a in other._schema.arguments)
        if outs or (other._schema.is_mutable and not is_out):
            continue
        if _essence(other._schema, is_out) == wanted:
            return f"{plain}.{candidate}", False
    return own, False


def overload(name: str) -> torch._ops.OpOverload | None:
    """The aten overload of a table name such as "add.Tensor"."""
    base, _, own = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return None if packet is None else getattr(packet, own, None)


#: What a factory is told of its result, and its out= form takes from the tensor to write.
_OF_THE_RESULT = frozenset({"dtype", "layout", "device", "pin_memory"})


def _essence(schema: Any, to_out: bool) -> list[tuple[str, str]]:
    return [
        (a.name, str(a.type))
        for a in schema.arguments
        if not a.is_out and not (to_out and a.kwarg_only and a.name in _OF_THE_RESULT)
    ]


#: Overloads of _foreach_ ops and the overload of the plain op that one element runs.
_FOREACH_OVERLOADS = {
    "Scalar": ("Tensor", "Scalar", "Tensor_Scalar", "default"),
    "ScalarList": ("Tensor", "Scalar", "Tensor_Scalar", "default"),
    "List": ("Tensor", "Tensor_Tensor", "default"),
    "Tensor": ("Tensor", "default"),
    "ScalarAndTensor": ("ScalarSelf",),
    "": ("default",),
}


def _element_form(base: str, overload: str) -> str:
    base = {"maximum": "maximum", "minimum": "minimum", "norm": "norm"}.get(base, base)
    if overload.endswith("out"):
        overload = overload.removesuffix("out").removesuffix("_")
    if base in ("clamp_min", "clamp_max") and overload in ("Scalar", "ScalarList"):
        return f"{base}.default"
    if base in ("maximum", "minimum") and overload in ("Scalar", "ScalarList"):
        return f"clamp_{'min' if base == 'maximum' else 'max'}.default"
    if base == "lerp":
        return {"Scalar": "lerp.Scalar", "List": "lerp.Tensor"}.get(overload, "lerp.Scalar")
    if base == "norm":
        return "linalg_vector_norm.default"
    if base == "pow" and overload in ("Scalar", "ScalarList"):
        return "pow.Tensor_Scalar"
    if base == "copy":
        return "copy.default"
    if base == "zero":
        return "zero.default"
    for candidate in _FOREACH_OVERLOADS.get(overload, (overload,)):
        if f"{base}.{candidate}" in TABLE:
            return f"{base}.{candidate}"
    return f"{base}.{overload}"
