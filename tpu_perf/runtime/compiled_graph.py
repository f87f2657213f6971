"""One AOTAutograd graph as XLA programs, one per geometry of its inputs."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import jax
import numpy as np
import torch

from tpu_perf.recorder import active
from tpu_perf.recorder.packing import dispatch_event, name_number
from tpu_perf.runtime.buffers import buffer_of
from tpu_perf.runtime.call_description import of_nodes
from tpu_perf.runtime.call_plan import Fresh
from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.forking import refuse_in_child
from tpu_perf.runtime.graph import GraphEvaluator, random_draws
from tpu_perf.runtime.graph_ends import input_nodes, output_node
from tpu_perf.runtime.plan_building import fresh_like, fresh_spread, store_order
from tpu_perf.runtime.program_cache import CACHE, Program
from tpu_perf.runtime.random_numbers import GENERATOR
from tpu_perf.runtime.recompiles import Form, Origin, differences
from tpu_perf.runtime.views import ViewPlan, view_plan

_clock = time.perf_counter_ns
_REASON = "compile_mode_execution"


class CompiledGraph:
    """One AOTAutograd graph as XLA programs, one per geometry of its inputs."""

    def __init__(self, module: torch.fx.GraphModule, name: str, origin: Origin) -> None:
        self.name = name
        self.origin = origin
        self.input_names = origin.input_names(module)
        self.number = name_number(name)
        self.evaluator = GraphEvaluator(module)
        self.ops = sum(n.op == "call_function" for n in module.graph.nodes)
        self.draws = random_draws(module)
        self.text = _graph_text(module, self.evaluator.constants)
        position = {n: i for i, n in enumerate(input_nodes(module))}
        outputs = output_node(module).args[0]
        flat = list(torch.utils._pytree.tree_leaves(outputs, is_leaf=lambda x: x is None))
        #: For every output: the input it simply hands on (no program output), or None.
        self.handed_on = [position.get(o) if isinstance(o, torch.fx.Node) else None for o in flat]
        self.constant = [o if not isinstance(o, torch.fx.Node) else _COMPUTED for o in flat]
        self.outputs = [_output(o) for o in flat]
        self._programs: dict[Any, Program] = {}
        #: By geometry without storage offsets: the first offsets met, and the program that takes
        #: some offsets as arguments.
        self._first: dict[Any, Any] = {}
        self._moving: dict[Any, tuple[Program, tuple[int, ...]]] = {}
        self._last: Any = None

    def __call__(self, *inputs: Any) -> list[Any]:
        refuse_in_child()
        recorder = active.recorder
        start = _clock() if recorder is not None else 0
        arrays: list[Any] = []
        key: list[Any] = []
        for value in inputs:
            if isinstance(value, torch.Tensor):
                if value.device.type != "tpu":
                    value = value.to("tpu")
                buffer = buffer_of(value)
                array = buffer.array
                if array is None or buffer.segment is not None:
                    array = buffer.ready(_REASON)
                arrays.append(array)
                may_be_turned = buffer.spec.may_be_turned
                turned = (value.is_conj(), value.is_neg()) if may_be_turned else ()
                key.append((buffer.spec, value.dtype, value.shape, value.stride(),
                            value.storage_offset(), *turned))  # fmt: skip
            else:
                key.append(value)
        moving: tuple[int, ...] = ()
        program = self._programs.get(tuple(key))
        if program is None:
            program, moving = self._find(tuple(key))
        if self.draws:
            arrays += GENERATOR.take(self.draws)
        arrays += [key[i][_OFFSET] for i in moving]
        outs = iter(program.run(*arrays))
        results: list[Any] = []
        for handed_on, constant, output in zip(
            self.handed_on, self.constant, self.outputs, strict=True
        ):
            if handed_on is not None:
                results.append(inputs[handed_on])
            elif constant is not _COMPUTED:
                results.append(constant)
            elif output is None:
                results.append(None)
            else:
                fresh, on_host = output
                made = fresh.tensor(next(outs))
                results.append(made.cpu() if on_host else made)
        if recorder is not None:
            recorder.dispatch(
                dispatch_event(start, _clock(), self.number, program.index, recorder.step)
            )
        return results

    def _find(self, key: Any) -> tuple[Program, tuple[int, ...]]:
        """The program for inputs of a geometry not met before, and which inputs' offsets into
        their storage it takes: a slice that moves must not cost a program at every place."""
        rest = tuple([(*k[:_OFFSET], *k[_OFFSET + 1 :]) if _is_tensor(k) else k for k in key])
        first = self._first.setdefault(rest, key)
        moving: tuple[int, ...] = ()
        if first is not key and all(map(_can_move, key, first)):
            moving = tuple(i for i, (k, f) in enumerate(zip(key, first, strict=True)) if k != f)
            program, known = self._moving.get(rest, (None, ()))
            if program is not None and set(moving) <= set(known):
                return program, known
            moving = tuple(sorted({*moving, *known}))
        why = self.origin.why
        if self._last is not None:
            changes = differences(
                self.input_names, [_layout(k) for k in self._last], [_layout(k) for k in key]
            )
            why = self.origin.recompiled("layout", changes)
        self._last = key
        program = self._build(key, moving, why)
        if moving:
            self._moving[rest] = program, moving
        else:
            self._programs[key] = program
        return program, moving

    def _build(self, key: Any, moving: tuple[int, ...], why: str | None) -> Program:
        views: list[ViewPlan | int | float] = [
            view_plan(k[0], k[1], tuple(k[2]), tuple(k[3]), *k[4:]) if _is_tensor(k) else k
            for k in key
        ]
        avals = [
            (v.spec.shape, numpy_dtype(v.spec.dtype)) for v in views if isinstance(v, ViewPlan)
        ]
        if self.draws:
            avals += [((), numpy_dtype(torch.int64))] * 2
        avals += [((), numpy_dtype(torch.int64))] * len(moving)
        wanted = [
            i for i, (h, c) in enumerate(zip(self.handed_on, self.constant, strict=True))
            if h is None and c is _COMPUTED
        ]  # fmt: skip

        def compute(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            offsets = dict(zip(moving, arrays[len(arrays) - len(moving) :], strict=True))
            feed = iter(arrays)
            values = [
                v.read_at(next(feed), offsets.get(i)) if isinstance(v, ViewPlan) else v
                for i, v in enumerate(views)
            ]
            seed = offset = None
            if self.draws:
                seed, offset = next(feed), next(feed)
            results = self.evaluator(values, seed, offset)
            return tuple(
                store_order(results[i], made[0]) for i in wanted
                if results[i] is not None and (made := self.outputs[i]) is not None
            )  # fmt: skip

        geometry = [v.text if isinstance(v, ViewPlan) else v for v in views]
        return CACHE.build(
            name=self.name, kind="graph", ops=self.ops,
            key_text=f"graph({geometry}, {moving})\n{self.text}", compute=compute,
            in_avals=avals, differed=why, parts=lambda: of_nodes(self.evaluator.nodes),
        )  # fmt: skip


#: Where in the key of a tensor its offset into its storage stands.
_OFFSET = 4


def _is_tensor(part: Any) -> bool:
    return isinstance(part, tuple)


def _can_move(part: Any, first: Any) -> bool:
    """Whether an input's offset, if it differs, can be an argument of the program."""
    return part == first or (part[0].dtype == part[1] and 0 not in part[2])


def _layout(part: Any) -> Form:
    if not _is_tensor(part):
        return {"value": repr(part)}
    spec, dtype, shape, stride, offset, *turned = part
    return {
        "shape": str(list(shape)), "dtype": str(dtype), "strides": str(tuple(stride)),
        "storage offset": str(offset), "storage": str(list(spec.shape)),
        "conjugated, negated": str(tuple(turned)),
    }  # fmt: skip


_COMPUTED = object()


def _output(node: Any) -> tuple[Fresh, bool] | None:
    """The geometry of a graph's output, and whether the user finds it on the CPU."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    fresh = fresh_spread(value) if _is_spread(node) else fresh_like(value)
    return fresh, value.device.type == "cpu"


def _is_spread(node: torch.fx.Node) -> bool:
    """Whether a value's elements are one along its dims of stride 0. What torch's fakes say of
    other ops does not tell: some give a result the strides of an argument."""
    value = node.meta["val"]
    if not any(s == 0 and n > 1 for n, s in zip(value.shape, value.stride(), strict=True)):
        return False
    while isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
        if node.target is torch.ops.aten.expand.default:
            return True
        node = node.args[0]  # type: ignore[assignment]
    return node.target in _OF_GIVEN_STRIDES


_OF_GIVEN_STRIDES = {
    torch.ops.aten.empty_strided.default, torch.ops.aten.new_empty_strided.default,
}  # fmt: skip


def _graph_text(module: torch.fx.GraphModule, constants: dict[str, Any]) -> str:
    """The graph as text with shapes: what the cache key needs of it."""
    lines = []
    for node in module.graph.nodes:
        value = node.meta.get("val")
        kinds = [
            f"{v.dtype}{tuple(v.shape)}"
            for v in torch.utils._pytree.tree_leaves(value)
            if isinstance(v, torch.Tensor)
        ]
        constant = ""
        if node.op == "get_attr":
            value = constants[node.target]
            if isinstance(value, GraphEvaluator):
                constant = f"{{{_graph_text(value.module, value.constants)}}}"
            elif isinstance(value, np.ndarray):
                constant = hashlib.sha256(value.tobytes()).hexdigest()
        lines.append(f"{node.name}={node.target}{node.args}{node.kwargs}:{kinds}{constant}")
    return "\n".join(lines)
