"""One AOTAutograd graph as XLA programs, one per geometry of its inputs."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from tpu_perf.recorder import active
from tpu_perf.recorder.packing import dispatch_event, name_number
from tpu_perf.runtime.buffers import Buffer, buffer_of
from tpu_perf.runtime.call_description import of_nodes
from tpu_perf.runtime.call_plan import CallPlan, Fresh
from tpu_perf.runtime.captured_graph import record_graph
from tpu_perf.runtime.compiled_writes import HostOutputs, HostScalar, host_scalar, packed
from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.forking import refuse_in_child
from tpu_perf.runtime.graph import GraphEvaluator, random_draws
from tpu_perf.runtime.graph_ends import input_nodes, output_node
from tpu_perf.runtime.modes import STATE, EagerMode
from tpu_perf.runtime.plan_building import fresh_like, fresh_spread, store_order
from tpu_perf.runtime.program_cache import CACHE, Program
from tpu_perf.runtime.random_numbers import GENERATOR
from tpu_perf.runtime.recompiles import Form, Origin, differences
from tpu_perf.runtime.torch_private import storage_of
from tpu_perf.runtime.views import ViewPlan, view_plan

_clock = time.perf_counter_ns
_REASON = "compile_mode_execution"


class CompiledGraph:
    """One AOTAutograd graph as XLA programs, one per geometry of its inputs. `writes` are inputs
    that take the graph's last outputs as their new values."""

    def __init__(
        self, module: torch.fx.GraphModule, name: str, origin: Origin, writes: Sequence[int] = ()
    ) -> None:
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
        self.writes = {len(flat) - len(writes) + k: i for k, i in enumerate(writes)}
        self.on_host = HostOutputs(module)
        #: By geometry what stands for it in a step that is captured (`captured_graph`).
        self.captured: dict[Any, CallPlan] = {}
        self._programs: dict[Any, _Built] = {}
        #: By geometry without storage offsets: the first offsets met, and the program that takes
        #: some offsets as arguments.
        self._first: dict[Any, Any] = {}
        self._moving: dict[Any, _Built] = {}
        self._last: Any = None

    def __call__(self, *inputs: Any) -> list[Any]:
        refuse_in_child()
        if STATE.capturing:
            return record_graph(self, inputs)
        recorder = active.recorder
        start = _clock() if recorder is not None else 0
        arrays: list[Any] = []
        key: list[Any] = []
        scalars: dict[torch.dtype, list[torch.Tensor]] = {}
        buffers: dict[int, Buffer] = {}
        for i, value in enumerate(inputs):
            if not isinstance(value, torch.Tensor):
                key.append(value)
                continue
            try:
                buffer = storage_of(value)._buffer  # type: ignore[attr-defined]
            except AttributeError:
                scalar = host_scalar(value)
                if scalar is not None:
                    scalars.setdefault(value.dtype, []).append(value)
                    key.append(scalar)
                    continue
                if value.device.type != "tpu":
                    value = value.to("tpu")
                buffer = buffer_of(value)
            array = buffer.array
            if array is None or buffer.segment is not None:
                array = buffer.ready(_REASON)
            arrays.append(array)
            buffers[i] = buffer
            spec = buffer.spec
            turned = (value.is_conj(), value.is_neg()) if spec.may_be_turned else ()
            key.append((spec, value.dtype, value.shape, value.stride(),
                        value.storage_offset(), *turned))  # fmt: skip
        donates = bool(self.writes) and self._donates(buffers)
        key.append(donates)
        built = self._programs.get(tuple(key))
        if built is None:
            built = self._find(tuple(key))
        if self.draws:
            arrays += GENERATOR.take(self.draws)
        arrays += [key[i][_OFFSET] for i in built.moving]
        arrays += packed(scalars)
        program = built.program
        outs = iter(program.run(*arrays))
        for i in built.replaced:
            buffer = buffers[i]
            buffer.segment = None
            buffer.fill(next(outs))
        results = self._results(inputs, built, outs)
        if recorder is not None:
            recorder.dispatch(
                dispatch_event(start, _clock(), self.number, program.index, recorder.step)
            )
        return results

    def _donates(self, buffers: dict[int, Buffer]) -> bool:
        """Whether the arrays of written inputs may be taken: nobody else holds them."""
        if STATE.mode is not EagerMode.DEFER_NEVER:
            return False  # deferred ops may still have to read them, and Debug looks at them
        written = [buffers[i] for i in self.writes.values() if i in buffers]
        distinct = len({id(b) for b in buffers.values()}) == len(buffers)
        return distinct and not any(b.shared for b in written)

    def _results(self, inputs: Sequence[Any], built: _Built, outs: Iterator[Any]) -> list[Any]:
        """The graph's outputs; those that are new values of inputs are written there."""
        results: list[Any] = []
        on_host = self.on_host(inputs)
        for i, (handed_on, constant, output) in enumerate(
            zip(self.handed_on, self.constant, self.outputs, strict=True)
        ):
            result: Any = None
            if i in built.in_place:
                continue
            if i in on_host:
                result = on_host[i]
            elif handed_on is not None:
                result = inputs[handed_on]
            elif constant is not _COMPUTED:
                result = constant
            elif output is not None:
                fresh, stays = output
                result = fresh.tensor(next(outs))
                if stays:
                    result = result.cpu()
            if i in self.writes:
                inputs[self.writes[i]].copy_(result)
            else:
                results.append(result)
        return results

    def _find(self, key: Any) -> _Built:
        """The program for inputs of a geometry not met before, and which inputs' offsets into
        their storage it takes: a slice that moves must not cost a program at every place."""
        rest = tuple([(*k[:_OFFSET], *k[_OFFSET + 1 :]) if _is_tensor(k) else k for k in key])
        first = self._first.setdefault(rest, key)
        moving: tuple[int, ...] = ()
        if first is not key and all(map(_can_move, key, first)):
            moving = tuple(i for i, (k, f) in enumerate(zip(key, first, strict=True)) if k != f)
            known = self._moving.get(rest)
            if known is not None:
                if set(moving) <= set(known.moving):
                    return known
                moving = tuple(sorted({*moving, *known.moving}))
        why = self.origin.why
        if self._last is not None:
            changes = differences(
                self.input_names,
                [_layout(k) for k in self._last[:-1]],
                [_layout(k) for k in key[:-1]],
            )
            why = self.origin.recompiled("layout", changes)
        self._last = key
        built = self._build(key, moving, why)
        if moving:
            self._moving[rest] = built
        else:
            self._programs[key] = built
        return built

    def _build(self, given: Any, moving: tuple[int, ...], why: str | None) -> _Built:
        *key, donates = given
        views: list[ViewPlan | HostScalar | int | float] = [
            view_plan(k[0], k[1], tuple(k[2]), tuple(k[3]), *k[4:]) if _is_tensor(k) else k
            for k in key
        ]
        avals = [
            (v.spec.shape, numpy_dtype(v.spec.dtype)) for v in views if isinstance(v, ViewPlan)
        ]
        if self.draws:
            avals += [((), numpy_dtype(torch.int64))] * 2
        avals += [((), numpy_dtype(torch.int64))] * len(moving)
        kinds = Counter(v.dtype for v in views if isinstance(v, HostScalar))
        avals += [((n,), numpy_dtype(dtype)) for dtype, n in kinds.items()]
        in_place = {
            o: i for o, i in self.writes.items()
            if self.handed_on[o] is None and o not in self.on_host.positions
            and i not in moving and self._replaces(views[i], o)
        }  # fmt: skip
        wanted = [
            i for i, (h, c) in enumerate(zip(self.handed_on, self.constant, strict=True))
            if h is None and c is _COMPUTED and i not in in_place
            and i not in self.on_host.positions
        ]  # fmt: skip

        def compute(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            arrays_and_offsets = arrays[: len(arrays) - len(kinds)]
            packs = dict(zip(kinds, arrays[len(arrays) - len(kinds) :], strict=True))
            scalars = {dtype: iter(range(n)) for dtype, n in kinds.items()}
            first = len(arrays_and_offsets) - len(moving)
            offsets = dict(zip(moving, arrays_and_offsets[first:], strict=True))
            feed = iter(arrays_and_offsets)
            values = [
                v.read_at(next(feed), offsets.get(i)) if isinstance(v, ViewPlan)
                else packs[v.dtype][next(scalars[v.dtype])] if isinstance(v, HostScalar) else v
                for i, v in enumerate(views)
            ]  # fmt: skip
            seed = offset = None
            if self.draws:
                seed, offset = next(feed), next(feed)
            results = self.evaluator(values, seed, offset)
            # Replaced arrays come first: JAX gives a donated one to the next output of its kind.
            return tuple(
                store_order(results[i], made[0]) for i in (*in_place, *wanted)
                if results[i] is not None and (made := self.outputs[i]) is not None
            )  # fmt: skip

        geometry = [v.text if isinstance(v, ViewPlan) else v for v in views]
        array_of = {i: n for n, i in enumerate(
            i for i, v in enumerate(views) if isinstance(v, ViewPlan))}  # fmt: skip
        donated = tuple(array_of[i] for i in in_place.values()) if donates else ()
        program = CACHE.build(
            name=self.name, kind="graph", ops=self.ops,
            key_text=f"graph({geometry}, {moving}, {in_place})\n{self.text}", compute=compute,
            in_avals=avals, differed=why, parts=lambda: of_nodes(self.evaluator.nodes),
            donated=donated,
        )  # fmt: skip
        return _Built(program, moving, tuple(in_place.values()), frozenset(in_place))

    def _replaces(self, view: Any, output: int) -> bool:
        """Whether an output, as it is stored, is the new array of the input that it is for."""
        made = self.outputs[output]
        if not isinstance(view, ViewPlan) or made is None:
            return False
        return view.identity and made[0].spec is view.spec and made[0].contiguous


@dataclass(frozen=True, slots=True)
class _Built:
    """A program; inputs whose offset it takes; inputs whose arrays its first outputs replace, and
    which outputs of the graph those are."""

    program: Program
    moving: tuple[int, ...]
    replaced: tuple[int, ...]
    in_place: frozenset[int]


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
