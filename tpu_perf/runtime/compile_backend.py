"""torch.compile(backend="tpu"): Dynamo and AOTAutograd give graphs, the table makes programs."""

from __future__ import annotations

import contextlib
import functools
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import _COMPILER_FNS, register_backend
from torch._dynamo.device_interface import (
    DeviceInterface,
    get_interface_for_device,
    register_interface_for_device,
)
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

from tpu_perf.runtime import flex_attention
from tpu_perf.runtime.compiled_parts import compiled
from tpu_perf.runtime.compiled_shapes import ShapedGraphs, has_symbols
from tpu_perf.runtime.decompositions import decompositions_for_compile
from tpu_perf.runtime.import_hooks import when_imported
from tpu_perf.runtime.random_numbers import TpuGenerator
from tpu_perf.runtime.recompiles import Origin, origin_of
from tpu_perf.runtime.torch_private import graph_breaks_for_generators


def _compiler(kind: str, origin: Origin) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Any]:
    name = f"compiled_{kind}"

    def compile_graph(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        if has_symbols(module):
            return make_boxed_func(ShapedGraphs(module, origin, lambda m, o: compiled(m, name, o)))
        return make_boxed_func(compiled(module, name, origin))

    return compile_graph


def tpu_backend(module: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Any:
    """The Dynamo backend: a forward and a backward program per graph."""
    origin = origin_of(module, example_inputs)
    prepared = aot_autograd(
        fw_compiler=_compiler("forward", origin),
        bw_compiler=_compiler("backward", origin.backward()),
        inference_compiler=_compiler("inference", origin),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=dict(decompositions_for_compile()),
        keep_inference_input_mutations=True,
    )
    return prepared(module, example_inputs)


class _NoInductor:
    """What inductor would make the device's code with."""

    supports_caching = False

    def __init__(self, *_: Any) -> None:
        self.create()

    @staticmethod
    def create(*_: Any) -> None:
        raise NotImplementedError(
            'torch.compile made a graph for device tpu with its backend "inductor", which has no '
            'code for this device; use torch.compile(..., backend="tpu")'
        )


def _register_with_inductor(common: types.ModuleType) -> None:
    common.register_backend_for_device("tpu", _NoInductor, _NoInductor)


def _take_from_inductor(module: types.ModuleType) -> None:
    """Compile graphs on the device that are meant for inductor, torch.compile's default.

    Libraries compile parts of theirs without naming a backend, and leave no way to name one:
    torchtitan and transformers flex_attention, torch the making of its block masks.
    """
    original = module.compile_fx

    @functools.wraps(original)
    def compile_fx(graph: Any, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if not (isinstance(graph, torch.fx.GraphModule) and _on_device(graph)):
            return original(graph, inputs, *args, **kwargs)
        _tell_of_inductor()
        return tpu_backend(graph, inputs)

    module.compile_fx = compile_fx  # type: ignore[attr-defined]


def _on_device(graph: torch.fx.GraphModule) -> bool:
    """Whether any tensor of a graph that Dynamo made is on the device."""
    values = [node.meta.get("example_value") for node in graph.graph.nodes]
    return any(
        isinstance(v, torch.Tensor) and v.device.type == "tpu"
        for v in torch.utils._pytree.tree_leaves(values)
    )


@functools.cache
def _tell_of_inductor() -> None:
    warnings.warn(
        'torch.compile was given its backend "inductor", which has no code for device tpu: graphs '
        'on the device are compiled by backend "tpu", and options for inductor have no effect',
        stacklevel=2,
    )


def register() -> None:
    """Make the backend known to Dynamo, and the device to its device-dependent code."""
    with contextlib.suppress(NotImplementedError):
        get_interface_for_device("tpu")  # torch registers its own on first look: ours comes after
    if "tpu" not in _COMPILER_FNS:  # it may have been found by its entry point
        register_backend(tpu_backend, name="tpu")
    graph_breaks_for_generators(TpuGenerator)
    # Inductor has an entry for "tpu" that needs another package.
    when_imported("torch._inductor.codegen.common", _register_with_inductor)
    when_imported("torch._inductor.compile_fx", _take_from_inductor)
    flex_attention.register()
    tpu = torch.tpu  # type: ignore[attr-defined]

    class TpuInterface(DeviceInterface):
        Event = tpu.Event
        Stream = tpu.Stream
        device = tpu.device

        class Worker:
            @staticmethod
            def set_device(device: int) -> None:
                """One device."""

            @staticmethod
            def current_device() -> int:
                return 0

            @staticmethod
            def get_device_properties(device: Any = None) -> Any:
                return tpu.get_device_properties(device)

        current_device = staticmethod(tpu.current_device)
        set_device = staticmethod(tpu.set_device)
        device_count = staticmethod(tpu.device_count)
        is_available = staticmethod(tpu.is_available)
        current_stream = staticmethod(tpu.current_stream)
        set_stream = staticmethod(tpu.set_stream)
        synchronize = staticmethod(tpu.synchronize)
        get_device_properties = staticmethod(tpu.get_device_properties)
        exchange_device = staticmethod(tpu.exchange_device)
        maybe_exchange_device = staticmethod(tpu.maybe_exchange_device)

        @staticmethod
        def get_raw_stream(device_idx: int) -> int:
            return 0

        @staticmethod
        def get_compute_capability(device: Any = None) -> str:
            return "tpu"

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            return True

    register_interface_for_device("tpu", TpuInterface)
    # After a graph break Dynamo looks at every Python function that runs, kernels included.
    for package in ("tpu_perf.runtime", "tpu_perf.recorder", "jax", "jaxlib"):
        trace_rules.add(package)
    # A second shape compiles a second static program, as TorchTPU does: XLA has no dynamic
    # shapes worth using, and a recompile is counted and explained instead.
    torch._dynamo.config.automatic_dynamic_shapes = False
