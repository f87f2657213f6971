"""What ops a program computes, on arguments of which shapes, in a form that can be stored.

Reading a run must not need torch: an op's arguments become plain JSON values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tpu_perf.runtime.binding import Bound
    from tpu_perf.runtime.call_plan import CallPlan
    from tpu_perf.runtime.signatures import Signature


@dataclass(frozen=True, slots=True)
class Part:
    """One aten op of a program. `names`, `arguments` and `results` are JSON, see
    record.details.CALL_COLUMNS; bytes are None where not known. `place` is where a graph's node
    says that it comes from."""

    op: str
    names: str
    arguments: str
    results: str
    bytes_in: int | None = None
    bytes_out: int | None = None
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """The user's line and module of an op, and its phase, as `recorder.sites` has them."""

    file: str
    line: int
    function: str
    module: str
    module_class: str
    phase: str
    stack: str


def of_call(signature: Signature, bound: Bound) -> tuple[str, str]:
    """Names and arguments of a call."""
    return _names(a.name for a in signature.arguments), json.dumps(
        [_value(v) for v in bound.values]
    )


def of_plan(plan: CallPlan) -> Part:
    """The op of a call plan."""
    results = [_meta(f.size, f.spec.dtype) for f in plan.fresh]
    results += [_meta(plan.slots[slot].shape, plan.slots[slot].dtype) for slot in plan.mutated]
    names, arguments = plan.described
    return Part(plan.op, names, arguments, json.dumps(results), plan.bytes_in, plan.bytes_out)


def of_nodes(nodes: Sequence[torch.fx.Node]) -> list[Part]:
    """The ops of an FX graph, in order."""
    return [_of_node(node) for node in nodes if node.op == "call_function"]


def _of_node(node: torch.fx.Node) -> Part:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        name = target._name if "." in target._name else f"{target._name}.default"
        schema = target._schema.arguments
        given = dict(zip((a.name for a in schema), node.args, strict=False))
        given |= node.kwargs
        values = [
            given.get(a.name, a.default_value if a.has_default_value() else None) for a in schema
        ]
        names = _names(a.name for a in schema)
    else:
        name, values, names = str(getattr(target, "__name__", target)), list(node.args), "[]"
    outputs = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    results = [_value(o) for o in outputs if isinstance(o, torch.Tensor)]
    return Part(name, names, json.dumps([_value(v) for v in values]), json.dumps(results),
                place=_place(node))  # fmt: skip


def _names(names: Iterable[str]) -> str:
    return json.dumps(list(names))


def _meta(shape: Iterable[int], dtype: torch.dtype) -> dict[str, Any]:
    return {"dtype": str(dtype).removeprefix("torch."), "shape": [int(s) for s in shape]}


def _value(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        return _meta(value.shape, value.dtype)
    if isinstance(value, (list, tuple)):
        return [_value(v) for v in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)
    return repr(value)


def _place(node: torch.fx.Node) -> Place | None:
    """Where a node of AOTAutograd's graph comes from, as Dynamo and autograd noted it."""
    meta = node.meta
    backward = "fwd_nn_module_stack" in meta or meta.get("partitioner_tag") == "is_backward"
    modules = meta.get("fwd_nn_module_stack") or meta.get("nn_module_stack") or {}
    path, kind = "", ""
    if modules:
        path, kind = list(modules.values())[-1]
        path = _plain_path(str(path))
        kind = str(getattr(kind, "__name__", kind)).rpartition(".")[2]
    trace = meta.get("fwd_stack_trace") or meta.get("stack_trace")
    frames = _frames(trace or "")
    if not frames and not modules:
        return None
    file, line, function = frames[0] if frames else ("", -1, "")
    stack = "\n".join(f"{f}:{n} {name}" for f, n, name in frames[:8])
    return Place(file, line, function, path, kind, "backward" if backward else "forward", stack)


#: How Dynamo names what a compiled function was given: `L['self']`, `L['fn']`, `L['args'][0]`.
_ROOT = re.compile(r"^L\['\w+'\](\[\d+\])?")


def _plain_path(path: str) -> str:
    """`L['self'].model.layers[3].mlp`, as Dynamo writes it, as `model.layers.3.mlp`."""
    path = _ROOT.sub("", path)
    for old, new in (("._modules", ""), ("['", "."),
                     ("']", ""), ("[", "."), ("]", "")):  # fmt: skip
        path = path.replace(old, new)
    return path.strip(".") or "(root)"


def _frames(trace: str) -> list[tuple[str, int, str]]:
    """The frames of a formatted stack trace that are not torch's, innermost first."""
    frames = []
    for text in trace.splitlines():
        text = text.strip()
        if not text.startswith('File "'):
            continue
        file, _, rest = text.removeprefix('File "').partition('", line ')
        line, _, function = rest.partition(", in ")
        if "/torch/" not in file and line.isdigit():
            frames.append((file, int(line), function))
    return frames[::-1]
