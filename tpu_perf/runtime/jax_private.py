"""All private JAX and jaxlib API that the device needs (tested with jax and jaxlib 0.10.2).

jaxlib's C++ jit dispatch (`_jax.pjit`) is the fastest way into PJRT from Python: about 5 us a
call against 15 for the public AOT call. It is given our own "cache miss" function, so that a
program loaded from disk runs on the same path as one just compiled.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import compiler, core, tree_util, xla_bridge
from jax._src.interpreters import mlir, pxla
from jax._src.lib import _jax  # type: ignore[attr-defined]
from jax._src.lib import xla_client as xc  # type: ignore[attr-defined]
from jax.sharding import SingleDeviceSharding

from tpu_perf.runtime.forking import device_started, refuse_in_child

Aval = tuple[tuple[int, ...], "np.dtype[Any]"]
_FORCED_DEVICES = "xla_force_host_platform_device_count"


def start_platform() -> None:
    """Choose JAX's platform explicitly and switch on 64-bit types, as PyTorch has them.

    With libtpu installed and no TPU present JAX would try the TPU first and fail, so a machine
    without one gets the CPU unless JAX_PLATFORMS says otherwise.
    """
    if not os.environ.get("JAX_PLATFORMS") and not tpu_on_pci_bus():
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)


def tpu_on_pci_bus(root: str = "/sys/bus/pci/devices") -> bool:
    """Whether a Google accelerator (PCI vendor 0x1ae0) is on this machine's PCI bus."""
    try:
        for device in os.listdir(root):
            with open(os.path.join(root, device, "vendor"), encoding="ascii") as vendor:
                if vendor.read().strip() != "0x1ae0":
                    continue
            with open(os.path.join(root, device, "class"), encoding="ascii") as kind:
                if kind.read().strip().startswith(("0x0880", "0x1200", "0xff")):
                    return True
    except OSError:
        return False
    return False


def device() -> Any:
    """The one JAX device this process computes on."""
    return _device()


def devices() -> list[Any]:
    """All JAX devices of this process."""
    device_started()
    return list(jax.local_devices())


def want_devices(count: int) -> None:
    """Have a CPU stand for so many devices. Without effect once JAX has started, on a TPU, and
    where XLA_FLAGS asks for a number already."""
    if _FORCED_DEVICES in os.environ.get("XLA_FLAGS", "") or xla_bridge.backends_are_initialized():
        return
    jax.config.update("jax_num_cpu_devices", count)


def bytes_limit() -> int | None:
    """Memory of the device where the backend says (XLA:CPU does not)."""
    try:
        return (_device().memory_stats() or {}).get("bytes_limit")
    except Exception:  # optional in PJRT
        return None


_cached_device: Any = None
_cached_sharding: Any = None


def _device() -> Any:
    global _cached_device, _cached_sharding
    if _cached_device is None:
        device_started()
        _cached_device = jax.local_devices()[0]
        _cached_sharding = SingleDeviceSharding(_cached_device)
    return _cached_device


def sharding() -> Any:
    _device()
    return _cached_sharding


def put(host: np.ndarray[Any, Any]) -> jax.Array:
    """Copy a host array to the device. JAX on a CPU may alias host memory, so the caller must
    own `host`."""
    refuse_in_child()
    placed: jax.Array = jax.device_put(host, sharding())
    return placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a program over several devices finds its inputs and leaves its outputs. `devices` are
    in the order of partitions; `axes` are those of their mesh, of which `batch_axes` split the
    batch; `parameters` are names and shapes of what the program trains."""

    devices: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    axes: Mapping[str, int] = field(default_factory=dict)
    batch_axes: tuple[str, ...] = ()
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Executable:
    """A loaded XLA program. `call(*arrays)` returns a tuple of arrays without waiting."""

    call: Callable[..., tuple[jax.Array, ...]]
    loaded: Any

    def serialize(self) -> bytes:
        return bytes(self.loaded.client.serialize_executable(self.loaded))

    def hlo(self) -> bytes | None:
        """The optimised module, a serialized HloModuleProto; None where the backend keeps none."""
        try:
            modules = self.loaded.hlo_modules()
        except Exception:  # optional in PJRT
            return None
        return bytes(modules[0].as_serialized_hlo_module_proto()) if modules else None

    def cost(self) -> dict[str, float]:
        """XLA's own cost analysis; -1 and NaN mean unknown and are left out."""
        try:
            properties = self.loaded.cost_analysis()
        except Exception:  # the analysis is optional in PJRT
            return {}
        if isinstance(properties, list):
            properties = properties[0] if properties else {}
        return {k: v for k, v in dict(properties).items() if np.isfinite(v) and v >= 0}

    def memory_bytes(self) -> dict[str, int]:
        """Bytes of arguments, outputs, aliases and temporaries on one device; empty if unknown."""
        try:
            stats = self.loaded.get_compiled_memory_stats()
        except Exception:  # optional in PJRT
            return {}
        kinds = ("argument", "output", "alias", "temp")
        return {kind: int(getattr(stats, f"{kind}_size_in_bytes")) for kind in kinds}

    def temp_bytes(self) -> int | None:
        return self.memory_bytes().get("temp")


@dataclass(slots=True)
class Lowered:
    """A traced program, ready to compile."""

    stage: Any
    in_count: int
    out_avals: list[Aval]
    placement: Placement | None = None

    def bytecode(self) -> bytes:
        """The StableHLO module as MLIR bytecode."""
        return bytes(mlir.module_to_bytecode(self.stage.compiler_ir("stablehlo")))

    def compile(self, options: Mapping[str, Any] | None = None) -> Executable:
        compiled = self.stage.compile(compiler_options=dict(options) if options else None)
        return executable(
            compiled.runtime_executable(), self.in_count, self.out_avals, self.placement
        )


def lower(
    function: Callable[..., Any], in_avals: Sequence[Aval], donated: Sequence[int], name: str,
    placement: Placement | None = None,
) -> Lowered:  # fmt: skip
    """Trace `function` (arrays in, tuple of arrays out) to StableHLO."""
    stage = _traced(function, in_avals, donated, name, placement).lower()
    outs = [(tuple(o.shape), np.dtype(o.dtype)) for o in jax.tree_util.tree_leaves(stage.out_info)]
    return Lowered(stage, len(in_avals), outs, placement)


def lower_elsewhere(
    function: Callable[..., Any], in_avals: Sequence[Aval], donated: Sequence[int], name: str,
    placement: Placement, platform: str,
) -> bytes:  # fmt: skip
    """StableHLO (MLIR bytecode) of `function` over a mesh without devices, for `platform`: the
    shardings are in it, the devices are the compiler's to choose."""
    traced = _traced(function, in_avals, donated, name, placement)
    stage = traced.lower(lowering_platforms=(platform,))
    return bytes(mlir.module_to_bytecode(stage.compiler_ir("stablehlo")))


def _traced(
    function: Callable[..., Any], in_avals: Sequence[Aval], donated: Sequence[int], name: str,
    placement: Placement | None,
) -> Any:  # fmt: skip
    function.__name__ = name
    places = [sharding()] * len(in_avals) if placement is None else placement.inputs
    specs = [
        jax.ShapeDtypeStruct(s, d, sharding=place)
        for (s, d), place in zip(in_avals, places, strict=True)
    ]
    given: dict[str, Any] = {} if placement is None else {"out_shardings": placement.outputs}
    jitted = jax.jit(function, donate_argnums=tuple(donated), keep_unused=True, **given)
    return jitted.trace(*specs)


def stablehlo_text(bytecode: bytes) -> str:
    """A StableHLO module as people read it."""
    with mlir.make_ir_context() as context:
        return str(mlir.ir.Module.parse(bytecode, context))  # type: ignore[attr-defined]


def hlo_with_buffers(
    bytecode: bytes, options: Mapping[str, Any], placement: Placement | None = None
) -> bytes | None:
    """An HloProto of the optimised module with its buffer assignment, which XLA gives only to a
    dump: the StableHLO is compiled once more. None if XLA wrote no such file."""
    with tempfile.TemporaryDirectory(prefix="tpu_perf_hlo_") as directory:
        dump: dict[str, Any] = {"xla_dump_to": directory, "xla_dump_hlo_as_proto": True}
        places = (device(),) if placement is None else placement.devices
        asked = compiler.get_compile_options(
            num_replicas=1, num_partitions=len(places),
            device_assignment=np.array([[place.id for place in places]]),
            env_options_overrides={**options, **dump},
        )  # fmt: skip
        if placement is not None:
            asked.executable_build_options.use_shardy_partitioner = True
        device().client.compile_and_load(bytecode, xc.DeviceList(places), asked)
        files = sorted(Path(directory).glob("*after_optimizations.hlo.pb"))
        return files[0].read_bytes() if files else None


def load(
    serialized: bytes, in_count: int, out_avals: Sequence[Aval], placement: Placement | None = None
) -> Executable:
    """Load a serialized executable. Raises whatever PJRT raises on a foreign or damaged one."""
    places = (device(),) if placement is None else placement.devices
    loaded = device().client.deserialize_executable(
        serialized, executable_devices=xc.DeviceList(places)
    )
    return executable(loaded, in_count, out_avals, placement)


def executable(
    loaded: Any, in_count: int, out_avals: Sequence[Aval], placement: Placement | None = None
) -> Executable:
    """Wrap a PJRT executable in jaxlib's C++ dispatch."""
    avals = [core.ShapedArray(shape, dtype) for shape, dtype in out_avals]
    if placement is None:
        placement = Placement(
            devices=(device(),), inputs=(sharding(),) * in_count, outputs=(sharding(),) * len(avals)
        )
    wanted, made = list(placement.inputs), list(placement.outputs)
    count = len(avals)
    out_tree = tree_util.tree_structure((0,) * count)
    fast = pxla.MeshExecutableFastpathData(
        loaded, out_tree, wanted, made, avals,
        [True] * count, [True] * in_count, [None] * in_count, [],
    )  # fmt: skip
    handlers = [
        lambda shards, shape=aval.shape, place=place: jax.make_array_from_single_device_arrays(
            shape, place, list(shards)
        )
        for aval, place in zip(avals, made, strict=True)
    ]

    def first_call(*args: Any) -> tuple[Any, Any, bool]:
        arrays = [
            a if isinstance(a, jax.Array) and a.sharding == place else jax.device_put(a, place)
            for a, place in zip(args, wanted, strict=True)
        ]
        results = loaded.execute_sharded(arrays)
        return tuple(results.consume_with_handlers(handlers)), fast, False

    call = _jax.pjit(
        "tpu_perf", None, first_call, [], [], pxla.JitGlobalCppCacheKeys(),
        tree_util.dispatch_registry, pxla.cc_shard_arg,
    )  # fmt: skip
    return Executable(call, loaded)


def platform_components() -> dict[str, str]:
    """Everything about the platform that a compiled program depends on, by component of its key
    (`program_store.components`)."""
    import importlib.metadata

    target = device()
    return {
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "platform": target.platform,
        "platform_version": target.client.platform_version,
        "device_kind": target.device_kind,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "libtpu_init_args": os.environ.get("LIBTPU_INIT_ARGS", ""),
        "host_cpu": _host_cpu() if target.platform == "cpu" else "any",
    }


def _host_cpu() -> str:
    """CPU model and features: XLA:CPU code compiled for one may crash on another."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            lines = info.read().splitlines()
    except OSError:
        import platform

        return platform.processor()
    wanted = ("model name", "flags", "Features")
    found = {line.split(":")[0].strip(): line for line in lines if line.startswith(wanted)}
    return "|".join(found[name] for name in sorted(found))
