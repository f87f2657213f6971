"""From a strategy, a mesh and the parameters of a model to how each parameter is split."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tpu_perf.config.problems import did_you_mean
from tpu_perf.errors import TpuPerfError
from tpu_perf.record.plan import AxisNames, Dims, ShardingPlan
from tpu_perf.sharding.strategies import BATCH_AXES, SEQUENCE_AXES
from tpu_perf.sharding.transformer_layers import Role, split_dimension


class ShardingError(TpuPerfError):
    """A job cannot be split as the ladder file asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """What the rules look at. `unit` is the run of elements that tensor parallelism must not cut
    (the width of a head), 1 where any cut will do."""

    name: str
    shape: tuple[int, ...]
    role: Role = "whole"
    inputs_first: bool = False
    unit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a parameter lies (`own`), and how it is used: gathered along `fsdp`."""

    own: Dims

    @property
    def use(self) -> Dims:
        return tuple(tuple(axis for axis in axes if axis != "fsdp") for axes in self.own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The splits of all parameters by name, and what the user should know."""

    mesh: Mapping[str, int]
    parameters: Mapping[str, Split]
    warnings: tuple[str, ...] = field(default=())

    def batch(self, name: str, shape: Sequence[int], warnings: list[str]) -> Dims:
        """How a tensor of the batch is split: rows, and positions where the mesh has an axis for
        them. What does not divide is copied, and a warning names it."""
        dims: list[tuple[str, ...]] = [()] * len(shape)
        for dimension, axes in enumerate((BATCH_AXES, SEQUENCE_AXES)[: len(shape)]):
            present = tuple(axis for axis in axes if axis in self.mesh)
            parts = math.prod(self.mesh[axis] for axis in present)
            if parts > 1 and shape[dimension] % parts:
                warnings.append(
                    f"{name}: its dimension {dimension} of {shape[dimension]} does not divide into "
                    f"{parts} ({_product(present, self.mesh)}), so every device computes all of it"
                )
            elif parts > 1:
                dims[dimension] = present
        return tuple(dims)


def assign(
    plan: ShardingPlan, facts: Sequence[ParameterFacts], given: Mapping[str, Dims] | None = None
) -> Assignment:
    """Split every parameter. `given` are splits along other axes than fsdp that the model came
    with; they stand in for the strategy's rules, which no parameter of such a model follows.

    Raises ShardingError where placements of the ladder file or of the model do not fit.
    """
    overrides = _overrides(plan, facts)
    uneven: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    found: dict[str, Split] = {}
    for one in facts:
        dims = overrides.get(one.name)
        if dims is None:
            start = _given(plan.mesh, one, given.get(one.name, ())) if given else None
            dims, complaint = _by_rule(plan.mesh, one, start)
            if complaint is not None:
                uneven.setdefault((complaint, one.shape), []).append(one.name)
        found[one.name] = Split(own=dims)
    warnings = tuple(
        f"{names[0]} {list(shape)}{_and_more(names)}: {complaint}"
        for (complaint, shape), names in uneven.items()
    )
    return Assignment(mesh=dict(plan.mesh), parameters=found, warnings=warnings)


def _given(mesh: Mapping[str, int], one: ParameterFacts, dims: Dims) -> Dims:
    """The split that a parameter came with, checked against the rung's mesh."""
    dims = dims or ((),) * len(one.shape)
    for axes in dims:
        for axis in axes:
            if axis not in mesh:
                raise ShardingError(
                    f"{one.name} came split along the axis {axis!r} of its DeviceMesh, which the "
                    f"rung's mesh ({', '.join(mesh)}) lacks",
                    hint="name the dimensions of the DeviceMesh as the axes of the rung's mesh",
                )
    return _checked(mesh, "of the model", one, dims)


def _by_rule(
    mesh: Mapping[str, int], one: ParameterFacts, given: Dims | None = None
) -> tuple[Dims, str | None]:
    """The split by the strategy's rules (with `given`, by those for fsdp alone), and what did not
    divide."""
    dims: list[tuple[str, ...]] = list(given or [()] * len(one.shape))
    left = [
        size // math.prod(mesh[axis] for axis in axes)
        for size, axes in zip(one.shape, dims, strict=True)
    ]
    complaint = None

    def split(dimension: int, axis: str) -> None:
        dims[dimension] = (*dims[dimension], axis)
        left[dimension] //= mesh[axis]

    ruled = given is None
    if ruled and mesh.get("expert", 1) > 1 and one.role == "experts":
        if left[0] % mesh["expert"]:
            complaint = f"{left[0]} experts do not divide by {mesh['expert']}; they are copied"
        else:
            split(0, "expert")
    if ruled and mesh.get("tensor", 1) > 1:
        dimension = split_dimension(one.role, len(one.shape), one.inputs_first)
        if dimension is not None:
            whole, parts = left[dimension], mesh["tensor"]
            if whole % parts or (whole // parts) % one.unit:
                heads = f"{whole // one.unit} heads" if one.unit > 1 else f"size {whole}"
                complaint = (f"{heads} in dimension {dimension} do not divide by tensor={parts}, "
                             "so every device of that axis has a copy")  # fmt: skip
            else:
                split(dimension, "tensor")
    if mesh.get("fsdp", 1) > 1 and one.shape and not any("fsdp" in axes for axes in dims):
        parts = mesh["fsdp"]
        fitting = [d for d, size in enumerate(left) if size % parts == 0 and size]
        if fitting:
            # Of equally large ones the first, as torch's fully_shard takes it.
            split(max(fitting, key=lambda d: (not dims[d], left[d], -d)), "fsdp")
        else:
            complaint = f"no dimension divides by fsdp={parts}, so every device has a copy"
    return tuple(dims), complaint


def _overrides(plan: ShardingPlan, facts: Sequence[ParameterFacts]) -> dict[str, Dims]:
    """The ladder file's own placements by parameter; a later pattern wins."""
    found: dict[str, Dims] = {}
    for pattern, wanted in plan.placements.items():
        matched = [one for one in facts if fnmatch.fnmatchcase(one.name, pattern)]
        if not matched:
            raise ShardingError(
                f"placements: no parameter is called {pattern!r}"
                f"{did_you_mean(pattern, [one.name for one in facts])}"
            )
        for one in matched:
            found[one.name] = _checked(plan.mesh, pattern, one, wanted)
    return found


def _checked(
    mesh: Mapping[str, int], pattern: str, one: ParameterFacts, wanted: Sequence[AxisNames]
) -> Dims:
    shape = list(one.shape)
    if len(wanted) > len(shape):
        raise ShardingError(
            f"placements.{pattern}: {len(wanted)} dimensions are placed, but {one.name} has the "
            f"shape {shape}"
        )
    dims = tuple(_axes(names) for names in wanted) + ((),) * (len(shape) - len(wanted))
    for dimension, axes in enumerate(dims):
        parts = math.prod(mesh[axis] for axis in axes)
        if shape[dimension] % parts:
            raise ShardingError(
                f"placements.{pattern}: dimension {dimension} of {one.name} {shape} does not "
                f"divide by {_product(axes, mesh)}"
            )
    return dims


def _axes(names: AxisNames) -> tuple[str, ...]:
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def _product(axes: Sequence[str], mesh: Mapping[str, int]) -> str:
    return " x ".join(f"{axis}={mesh[axis]}" for axis in axes)


def _and_more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more like it" if len(names) > 1 else ""
