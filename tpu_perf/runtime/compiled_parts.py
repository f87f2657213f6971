"""A static graph as what runs it: one program or, around ops that no program can hold, several."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.split_module import split_module

from tpu_perf.runtime.aten_kernels import BY_HAND
from tpu_perf.runtime.compiled_checks import make_checks, take_checks
from tpu_perf.runtime.compiled_graph import CompiledGraph
from tpu_perf.runtime.compiled_writes import take_writes
from tpu_perf.runtime.data_dependent import BY_HAND as DATA_DEPENDENT
from tpu_perf.runtime.decompositions import decompositions_for_compile
from tpu_perf.runtime.flex_attention import holds_flex_attention, with_formulas
from tpu_perf.runtime.graph import missing_of, missing_ops
from tpu_perf.runtime.graph_ends import input_nodes, output_node
from tpu_perf.runtime.modes import STATE
from tpu_perf.runtime.program_cache import user_line
from tpu_perf.runtime.recompiles import Origin

Graph = Callable[..., list[Any]]


def compiled(module: torch.fx.GraphModule, name: str, origin: Origin) -> Graph:
    """What runs the graph.

    Custom ops made of aten ops become part of the program; others run between programs, and so
    do aten ops that the eager modes compute by hand. Raises NotImplementedError for ops that the
    device cannot run.
    """
    checks = take_checks(module)
    writes = take_writes(module)
    if missing_ops(module):
        module = _without_custom_ops(module)
    graph: Graph
    if missing_ops(module):
        graph = _written_after(_Parts(module, name, origin), writes)
    else:
        graph = CompiledGraph(module, name, origin, writes)
    if not checks:
        return graph
    return lambda *inputs: make_checks(checks, graph(*inputs))


def _written_after(graph: Graph, writes: list[int]) -> Graph:
    """The graph with its last results copied into the inputs that it writes."""
    if not writes:
        return graph

    def run(*inputs: Any) -> list[Any]:
        results = graph(*inputs)
        for position, value in zip(writes, results[-len(writes) :], strict=True):
            inputs[position].copy_(value)
        return results[: -len(writes)]

    return run


def retraced(
    module: torch.fx.GraphModule, inputs: Any, table: Mapping[Any, Callable[..., Any]],
    functional: bool = False,
) -> torch.fx.GraphModule:  # fmt: skip
    """The graph traced again by fakes of these inputs, with ops of the table and flex_attention
    taken apart and, if asked, without mutations."""
    run = with_formulas(module)
    if functional:
        run = torch.func.functionalize(run, remove="mutations_and_views")
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [
            torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device)
            if isinstance(v, torch.Tensor) else v
            for v in inputs
        ]  # fmt: skip
        made: torch.fx.GraphModule = make_fx(run, decomposition_table=dict(table))(*fakes)
    made.graph.eliminate_dead_code()
    return made


def _without_custom_ops(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with the user's own ops taken apart where their kernels are written in torch, and
    so flex_attention; the graph as it was where one of them cannot be traced."""
    table = {}
    for node in module.graph.nodes:
        kernel = _custom_kernel(node.target)
        if kernel is not None:
            table[node.target] = kernel
    if not table and not holds_flex_attention(module):
        return module
    inputs = [n.meta.get("val") for n in input_nodes(module)]
    try:
        made = retraced(module, inputs, table)
        return retraced(made, inputs, decompositions_for_compile(), functional=True)
    except Exception:  # a kernel that reads values, or calls what is not torch
        return module


def _custom_kernel(op: Any) -> Callable[..., Any] | None:
    if not isinstance(op, torch._ops.OpOverload) or op.namespace in ("aten", "prims"):
        return None
    for key in ("PrivateUse1", "CompositeExplicitAutograd"):
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key):
            found = getattr(torch._C.DispatchKey, key)
            return lambda *args, **kwargs: op._op_dk(found, *args, **kwargs)
    return None


class _Parts:
    """A graph as programs with ops in between that run as in the eager modes."""

    def __init__(self, module: torch.fx.GraphModule, name: str, origin: Origin) -> None:
        part, eager_before = 0, False
        part_of: dict[torch.fx.Node, int] = {}
        eager: set[int] = set()
        for node in module.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            source = node.args[0] if node.target is operator.getitem else None
            if isinstance(source, torch.fx.Node) and part_of.get(source, -1) in eager:
                part_of[node] = part_of[source]
                continue
            missing = missing_of(node, module)
            if missing and not _runs_eagerly(node.target):
                raise NotImplementedError(
                    f"torch.compile on device tpu: no lowering for {', '.join(sorted(missing))} "
                    f"in the graph compiled at {user_line()}; run this part eagerly with "
                    "torch.compiler.disable, or with TORCH_TPU_CPU_FALLBACK=1"
                )
            if bool(missing) != eager_before:
                part, eager_before = part + 1, bool(missing)
            part_of[node] = part
            if missing:
                eager.add(part)
        split = split_module(module, module, part_of.__getitem__, keep_original_order=True)
        for number in range(part + 1):
            target = f"submod_{number}"
            if number not in eager and hasattr(split, target):
                split.add_submodule(target, _Program(getattr(split, target), name, origin))
        self.run = torch.fx.Interpreter(split).run

    def __call__(self, *inputs: Any) -> list[Any]:
        results = self.run(*inputs)
        return list(results) if isinstance(results, (tuple, list)) else [results]


class _Program(torch.nn.Module):
    """A part that is a program, in the place of its graph."""

    def __init__(self, module: torch.fx.GraphModule, name: str, origin: Origin) -> None:
        super().__init__()
        output = output_node(module)
        self.single = isinstance(output.args[0], torch.fx.Node)
        self.graph = CompiledGraph(module, name, origin)

    def forward(self, *inputs: Any) -> Any:
        results = self.graph(*inputs)
        return results[0] if self.single else results


#: What stands in a graph for a custom op that writes its arguments.
_MUTATING_CUSTOM_OPS = (
    torch.ops.higher_order.auto_functionalized, torch.ops.higher_order.auto_functionalized_v2,
)  # fmt: skip


def _runs_eagerly(op: Any) -> bool:
    """Whether the device has a kernel for an op that is not in the table."""
    if op in _MUTATING_CUSTOM_OPS:
        return True
    if not isinstance(op, torch._ops.OpOverload):
        return False
    if op.namespace not in ("aten", "prims") or STATE.cpu_fallback:
        return True
    name = op._name.removeprefix("aten::")
    return name in BY_HAND or name in DATA_DEPENDENT
