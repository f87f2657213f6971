"""Why a compiled function was compiled again: which input of which graph changed, and how.

XLA's programs are static. A graph traced again by Dynamo, a symbolic graph met by new sizes and
inputs that lie in memory in another way each cost a program, and each leave an entry here.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tpu_perf.runtime.graph_ends import input_nodes

_MOST_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """One property of one input that was new, such as the shape of `x`."""

    input: str
    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.input}: {self.what} {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Recompile:
    """One program more for a function that had been compiled before."""

    graph: str  # "forward at model.py:12"
    #: traced: Dynamo traced the function again; sizes: a graph of dynamic shapes met new sizes;
    #: layout: inputs of the same shapes lay otherwise in memory.
    cause: str
    changes: tuple[Change, ...]
    reason: str  # what Dynamo says, where it traced again

    def __str__(self) -> str:
        what = "; ".join(map(str, self.changes)) or self.reason
        return f"{self.graph} ({self.cause}): {what}"

    def as_json(self) -> dict[str, Any]:
        """The entry for torch.tpu._get_cache_stats()."""
        changes = [
            {"input": c.input, "what": c.what, "before": c.before, "after": c.after}
            for c in self.changes
        ]
        return {
            "graph": self.graph, "cause": self.cause, "changes": changes, "reason": self.reason
        }  # fmt: skip


#: The latest recompiles, oldest first, and how many each graph had.
RECOMPILES: deque[Recompile] = deque(maxlen=_MOST_KEPT)
COUNTS: Counter[str] = Counter()

#: What one input looked like, property by property.
Form = dict[str, str]


def form_of(value: Any) -> Form:
    """What of an input decides which program runs."""
    if isinstance(value, torch.Tensor):
        return {
            "shape": str(list(value.shape)), "dtype": str(value.dtype),
            "strides": str(tuple(value.stride())), "device": value.device.type,
        }  # fmt: skip
    return {"value": repr(value)}


def differences(
    names: Sequence[str], before: Sequence[Form], after: Sequence[Form]
) -> tuple[Change, ...]:
    """What differs between two lots of inputs; strides are told only where the shape is as it
    was, since they follow from it."""
    found = []
    for name, old, new in zip(names, before, after, strict=False):
        for what in dict.fromkeys((*old, *new)):
            if old.get(what) == new.get(what):
                continue
            if what == "strides" and old.get("shape") != new.get("shape"):
                continue
            found.append(Change(name, what, old.get(what, "absent"), new.get(what, "absent")))
    return tuple(found)


def report(graph: str, cause: str, changes: tuple[Change, ...] = (), reason: str = "") -> Recompile:
    """Count a recompile and keep what it was for."""
    made = Recompile(graph, cause, changes, reason)
    RECOMPILES.append(made)
    COUNTS[graph] += 1
    return made


def as_json() -> dict[str, Any]:
    """What torch.tpu._get_cache_stats() says: how many in all and by graph, and the latest."""
    return {
        "count": sum(COUNTS.values()),
        "by_graph": dict(COUNTS),
        "latest": [r.as_json() for r in RECOMPILES],
    }


def forget() -> None:
    """Start counting anew."""
    RECOMPILES.clear()
    COUNTS.clear()
    _last_traced.clear()


#: Inputs, by name, of the last graph that Dynamo traced of a function.
_last_traced: dict[str, dict[str, Form]] = {}


@dataclass(slots=True)
class Origin:
    """Where a graph comes from: what it is called, the user's names of the inputs of the graph
    that Dynamo traced, and why it was traced again, if it was."""

    graph: str
    names: list[str]
    why: str | None = None
    #: A backward graph is compiled again because its forward graph was: not counted twice.
    follows: bool = False

    def backward(self) -> Origin:
        return Origin(f"backward of {self.graph}", self.names, self.why, follows=True)

    def input_names(self, module: torch.fx.GraphModule) -> list[str]:
        """Names of the inputs of a graph that AOTAutograd made of this one."""
        return [self._input_name(node) for node in input_nodes(module)]

    def _input_name(self, node: torch.fx.Node) -> str:
        described = node.meta.get("desc")
        index: int = getattr(described, "idx", len(self.names))
        if type(described).__name__ == "PlainAOTInput" and index < len(self.names):
            return self.names[index]
        return node.name

    def recompiled(self, cause: str, changes: tuple[Change, ...]) -> str | None:
        """Count one program more; returns what to say of it."""
        if self.follows:
            return self.why
        return str(report(self.graph, cause, changes))


def origin_of(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Origin:
    """Note that Dynamo hands over a graph, and why, if it has traced this function before."""
    code = _code()
    names = [_source_name(node) for node in input_nodes(module)]
    if code is None:
        return Origin("graph", names)
    origin = Origin(f"{code.co_name} at {code.co_filename}:{code.co_firstlineno}", names)
    forms = [form_of(v) for v in inputs]
    before, reason = _last_traced.get(origin.graph), _dynamo_reason()
    _last_traced[origin.graph] = dict(zip(names, forms, strict=False))
    if reason is not None:
        old = [(before or {}).get(n, f) for n, f in zip(names, forms, strict=False)]
        changes = differences(names, old, forms)
        origin.why = str(report(origin.graph, "traced", changes, reason))
    return origin


def _code() -> Any:
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        return InstructionTranslator.current_tx().f_code
    except AttributeError:  # the backend was called without Dynamo
        return None


def _source_name(node: torch.fx.Node) -> str:
    """`x` for L['x'], `layer.weight` for a parameter of a module: as the user wrote it."""
    argument = node.meta.get("grapharg")
    if argument is None:
        return node.name
    name = str(argument.source.name)
    name = re.sub(r"^[LG]\['(\w+)'\]", r"\1", name)
    return re.sub(r"\.(?:_parameters|_buffers|_modules)\['(\w+)'\]", r".\1", name)


def _dynamo_reason() -> str | None:
    """Which guard failed, None where the function is traced for the first time."""
    from torch._dynamo.utils import get_metrics_context

    reason = get_metrics_context()._metrics.get("recompile_reason")
    if reason is None:
        return None
    first = str(reason).splitlines()[0].split("  #")[0]
    return re.sub(r"^\d+/\d+: ", "", first).strip()
