"""A plan: everything that decides what one rung runs and how, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

#: "unknown" stands in plans of captures that others made; a ladder file cannot ask for it.
Precision = Literal["float32", "bf16_autocast", "unknown"]
Mode = Literal["strict", "debug", "defer_and_fuse", "compile", "whole_step", "eager", "inductor"]
Unknown = Literal["unknown"]  # in plans of captures that others made


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    """Which workload kind, and its parameters as the config validated them."""

    kind: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerPlan:
    """A torch optimizer, unmodified: its name in torch.optim and its keyword arguments."""

    name: Literal["adamw", "sgd"] | Unknown
    implementation: Literal["foreach", "fused", "for_loop"] = "foreach"
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """How many steps are run, and when a rung counts as warm."""

    rounds: int
    steps_per_round: int
    quiet_steps: int  # steps in a row without a compile before a rung can be warm
    max_warmup_steps: int
    settle_fraction: float  # relative change of the running median that counts as settled
    numerics_steps: int  # first steps compared with torch on CPU
    timeout_s: float  # wall clock for one rung, warm-up included


#: Of runs that no ladder sampled: recordings of scripts and tests, captures made elsewhere.
NOT_SAMPLED = SamplingPlan(
    rounds=0,
    steps_per_round=0,
    quiet_steps=0,
    max_warmup_steps=0,
    settle_fraction=0.0,
    numerics_steps=0,
    timeout_s=0.0,
)


#: Mesh axes that split one dimension of a tensor: none, one, or several, the outermost first.
AxisNames = str | Sequence[str] | None
#: The same of all dimensions of a tensor, settled.
Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingPlan:
    """How a job is spread over several devices (`tpu_perf.sharding`)."""

    strategy: str
    mesh: Mapping[str, int]  # axis -> devices along it, the outermost first
    #: Pattern of parameter names -> mesh axes of each dimension, over the strategy's rules.
    placements: Mapping[str, Sequence[AxisNames]] = field(default_factory=dict)
    #: Whether parameters split along fsdp are gathered again for the backward pass.
    gather_again: bool = False
    program: Literal["whole_step", "compile"] = "whole_step"  # what runs over the mesh

    @property
    def devices(self) -> int:
        return math.prod(self.mesh.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One rung, fully decided. A rung is a function from Plan to Plan."""

    ladder: str
    rung: str
    workload: WorkloadPlan
    optimizer: OptimizerPlan
    engine: str = "xla"  # file in engines/ ("xla": our runtime, "cpu": torch), or "import"
    engine_options: Mapping[str, Any] = field(default_factory=dict)  # python, device
    execution: Literal["measure", "predict"] = "measure"
    mode: Mode | Unknown = "eager"
    precision: Precision = "float32"
    compiler_options: Mapping[str, Any] = field(default_factory=dict)
    sampling: SamplingPlan
    seed: int = 0
    cache_dir: str | None = None  # directory tier of the program cache; None: off
    cpu_fallback: bool = False
    threads: int | None = None  # host threads torch and XLA may use; None: their default
    sharding: ShardingPlan | None = None  # None: one device

    def with_changes(self, **changes: Any) -> Plan:
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        fields = dict(data)
        fields["workload"] = WorkloadPlan(**fields["workload"])
        fields["optimizer"] = OptimizerPlan(**fields["optimizer"])
        fields["sampling"] = SamplingPlan(**fields["sampling"])
        if fields.get("sharding") is not None:
            fields["sharding"] = ShardingPlan(**fields["sharding"])
        return cls(**fields)
