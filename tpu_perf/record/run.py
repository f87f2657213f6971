"""A run: what one rung left behind. The unit that is stored, read, compared and exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from tpu_perf.record.metric import Metric
from tpu_perf.record.plan import Plan

RUN_SCHEMA_VERSION = 1
Status = Literal["ok", "failed", "does_not_fit", "timeout", "skipped"]
STATUSES: tuple[str, ...] = get_args(Status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where a run happened; runs from unlike environments are not compared silently. Captures
    made elsewhere know little of it: "unknown", or None for numbers."""

    hostname: str
    os: str
    cpu: str
    cores: int | None
    memory_bytes: int | None
    python: str
    versions: Mapping[str, str]  # package -> version
    device_kind: str  # e.g. "cpu" or "TPU v6 lite", as the engine's backend names it
    device_count: int
    git_commit: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)  # XLA_FLAGS and friends

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Environment:
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the worker knows beyond events; None means not known, never zero.

    `reference_*` are torch-on-CPU values for the first `sampling.numerics_steps` steps; `losses`
    and `grad_norms` are this rung's for the same steps.
    """

    tokens_per_step: int | None = None
    samples_per_step: int | None = None
    parameters: int | None = None
    model_flops_per_step: float | None = None
    flops_convention: str | None = None  # e.g. "torch FlopCounterMode; attention non-causal"
    peak_flops_per_s: float | None = None
    peak_source: str | None = None  # e.g. "measured GEMM 2048^3 float32 on this CPU"
    peak_provenance: str | None = None  # measured | assumed
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    reference_losses: tuple[float, ...] = ()
    reference_grad_norms: tuple[float, ...] = ()
    numerics_tolerance: float | None = None  # relative; follows the precision of the rung
    device_time_per_step_ns: float | None = None
    host_time_per_step_ns: float | None = None
    lane_note: str | None = None  # how host and device time were told apart, or why not
    warm_at_step: int | None = None
    warm_note: str | None = None
    setup_ns: int | None = None  # building model, data and optimizer
    hbm_peak_bytes: int | None = None
    dropped_events: int = 0
    recorder_ns_per_event: float | None = None
    other_cpu_share: float | None = None  # of all cores' time, by other processes, in timed rounds
    source: Mapping[str, str] = field(default_factory=dict)  # free notes: name -> sentence

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        fields = dict(data)
        for name in ("losses", "grad_norms", "reference_losses", "reference_grad_norms"):
            fields[name] = tuple(fields.get(name) or ())
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """run.json. Tables (events, steps, programs) lie beside it; see `store`."""

    plan: Plan
    environment: Environment | None
    status: Status
    reason: str | None = None  # why not ok, in one sentence; always set unless ok
    facts: Facts = field(default_factory=Facts)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    why: str | None = None  # one sentence: what limits this rung
    warnings: tuple[str, ...] = ()
    started_at: str | None = None  # ISO 8601, UTC
    schema_version: int = RUN_SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"unknown status {self.status!r}")
        if self.status != "ok" and not self.reason:
            raise ValueError(f"a run with status {self.status} needs a reason")

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": self.schema_version,
            "status": self.status,
            "reason": self.reason,
            "why": self.why,
            "warnings": list(self.warnings),
            "started_at": self.started_at,
            "metrics": {name: metric.to_json() for name, metric in self.metrics.items()},
            "plan": self.plan.to_json(),
            "environment": None if self.environment is None else self.environment.to_json(),
            "facts": self.facts.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        environment = data.get("environment")
        return cls(
            schema_version=data["schema_version"],
            status=data["status"],
            reason=data.get("reason"),
            why=data.get("why"),
            warnings=tuple(data.get("warnings", ())),
            started_at=data.get("started_at"),
            metrics={n: Metric.from_json(m) for n, m in data.get("metrics", {}).items()},
            plan=Plan.from_json(data["plan"]),
            environment=None if environment is None else Environment.from_json(environment),
            facts=Facts.from_json(data.get("facts", {})),
        )
