"""A mesh of this process's devices: named axes, and arrays split along them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from tpu_perf.errors import EnvironmentProblem
from tpu_perf.record.plan import Dims
from tpu_perf.runtime import jax_private
from tpu_perf.runtime.torus_order import topology_aware_order


class DeviceMesh:
    """`axes` are names and sizes, the outermost first; `devices` default to those of the process,
    ordered by `topology_aware_order`."""

    def __init__(self, axes: Mapping[str, int], devices: Sequence[Any] | None = None) -> None:
        self.axes = dict(axes)
        count = math.prod(self.axes.values())
        if devices is None:
            devices = topology_aware_order(jax_private.devices(), tuple(self.axes.values()))
        if len(devices) < count:
            raise EnvironmentProblem(
                f"a mesh of {' x '.join(f'{k}={v}' for k, v in self.axes.items())} needs {count} "
                f"devices; this process has {len(devices)}",
                hint="make the mesh smaller; on a CPU as many devices as the mesh needs are made "
                "if nothing ran on the device before (or with "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={count})",
            )
        #: In the order of partitions; empty where the devices are not here.
        self.devices: tuple[Any, ...] = tuple(devices[:count])
        grid = np.array(list(self.devices), dtype=object).reshape(tuple(self.axes.values()))
        self.mesh: Mesh | AbstractMesh = Mesh(grid, tuple(self.axes), axis_types=self._types())

    @classmethod
    def without_devices(cls, axes: Mapping[str, int]) -> DeviceMesh:
        """A mesh for which programs can be lowered, and on which nothing can run."""
        mesh = cls.__new__(cls)
        mesh.axes = dict(axes)
        mesh.devices = ()
        mesh.mesh = AbstractMesh(
            tuple(mesh.axes.values()), tuple(mesh.axes), axis_types=mesh._types()
        )
        return mesh

    def _types(self) -> tuple[AxisType, ...]:
        return (AxisType.Auto,) * len(self.axes)

    @property
    def size(self) -> int:
        return math.prod(self.axes.values())

    @property
    def replicated(self) -> NamedSharding:
        return self.sharding(())

    def sharding(self, dims: Dims) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*(axes or None for axes in dims)))

    def parts(self, dims: Dims) -> int:
        """Into how many different pieces a tensor is split."""
        return math.prod(self.axes[axis] for axes in dims for axis in axes)


def topology_aware_mesh(axes: Mapping[str, int], traffic: Sequence[str] = ()) -> Mesh:
    """A `jax.sharding.Mesh` whose axes lie on the torus so that those with most traffic join
    neighbours. `traffic` names axes with the busiest first; by default the last axis is that.

    Raises EnvironmentProblem where there are too few devices, ValueError for unknown axes.
    """
    unknown = [axis for axis in traffic if axis not in axes]
    if unknown:
        raise ValueError(f"traffic: {', '.join(unknown)} are no axes of {', '.join(axes)}")
    quiet = [axis for axis in axes if axis not in traffic]
    order = [*quiet, *reversed(traffic)]  # the last axes get the nearest devices
    mesh = DeviceMesh({axis: axes[axis] for axis in order})
    grid = np.array(list(mesh.devices), dtype=object).reshape([axes[axis] for axis in order])
    grid = grid.transpose([order.index(axis) for axis in axes])
    return Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def place(array: Any, sharding: Any) -> jax.Array:
    """The array, on its devices; as it is where it lies so already, and where it has no values
    (what stands for one while programs are only traced)."""
    if not isinstance(array, (jax.Array, np.ndarray)):
        return array  # type: ignore[no-any-return]
    placed: jax.Array = jax.device_put(array, sharding)
    return placed
