"""libtpu with no TPU: topologies and ahead-of-time compiles (tested with jax and jaxlib 0.10.2 and
libtpu 0.0.42.1).

All private JAX and jaxlib API of the predictor is here. Only the compile worker imports it: libtpu
aborts the process on some inputs.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: What libtpu needs to hear on a machine that has no TPU, before it is loaded.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # no metadata server is asked
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else a second process dies on the lock file
    "TPU_ACCELERATOR_TYPE": "v6e-1",  # these two only silence warnings
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}


def library_path() -> Path | None:
    """Where libtpu.so is: TPU_LIBRARY_PATH, else in the package libtpu; None if there is none."""
    told = os.environ.get("TPU_LIBRARY_PATH")
    if told:
        return Path(told)
    found = importlib.util.find_spec("libtpu")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "libtpu.so"


def devices_of(topology_name: str, options: Mapping[str, Any]) -> list[Any]:
    """The devices of a slice, in libtpu's order."""
    from jax.experimental import topologies

    described = topologies.get_topology_desc(
        platform="tpu", topology_name=topology_name, **dict(options)
    )
    return list(described.devices)


class Module:
    """A StableHLO module: text, MLIR bytecode, or a portable artifact as jax.export writes it."""

    def __init__(self, stablehlo: bytes) -> None:
        """Raises ValueError where it does not parse."""
        from jax._src.interpreters import mlir
        from jax._src.lib import _jax  # type: ignore[attr-defined]

        with mlir.make_ir_context() as context:
            try:
                self._module = mlir.ir.Module.parse(stablehlo, context)  # type: ignore[attr-defined]
            except Exception as plain:  # a VHLO artifact has to be unwrapped first
                try:
                    text = _jax.mlir.deserialize_portable_artifact(stablehlo)
                    self._module = mlir.ir.Module.parse(text, context)  # type: ignore[attr-defined]
                except Exception:
                    raise ValueError(f"not a StableHLO module: {plain}") from None
            attributes = self._module.operation.attributes

            def number(name: str) -> int:
                return int(attributes[name].value) if name in attributes else 1

            self.partitions = number("mhlo.num_partitions")
            self.replicas = number("mhlo.num_replicas")
            self.uses_shardy = "sdy." in str(attributes) or b"sdy" in stablehlo

    def unoptimised_hlo(self) -> bytes:
        """The module as an HloModuleProto, before any pass: what was asked for."""
        from jax._src.interpreters import mlir
        from jax._src.lib import _jax  # type: ignore[attr-defined]

        with self._module.context:
            code = mlir.module_to_bytecode(self._module)
            computation = _jax.mlir.mlir_module_to_xla_computation(
                code, use_tuple_args=False, return_tuple=False
            )
        return bytes(computation.as_serialized_hlo_module_proto())

    def compile(
        self, devices: Sequence[Any], options: Sequence[tuple[str, Any]], order: Sequence[int]
    ) -> Any:
        """Compile for these devices; partition i runs on device order[i]."""
        import numpy as np
        from jax._src.lib import xla_client as xc  # type: ignore[attr-defined]

        wanted = self.replicas * self.partitions
        chosen = [devices[at] for at in (order or range(wanted))]
        if len(chosen) != wanted:
            raise ValueError(f"the program is for {wanted} devices, {len(chosen)} were given")
        settings = xc.CompileOptions()
        settings.num_replicas, settings.num_partitions = self.replicas, self.partitions
        ids = np.array([one.id for one in chosen]).reshape(self.replicas, self.partitions)
        settings.device_assignment = xc.DeviceAssignment.create(ids)
        build = settings.executable_build_options
        build.use_spmd_partitioning = self.partitions > 1
        build.use_shardy_partitioner = self.partitions > 1 and self.uses_shardy
        settings.env_option_overrides = list(options)
        return chosen[0].client.compile(self._module, xc.DeviceList(tuple(chosen)), settings)
