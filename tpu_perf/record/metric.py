"""One number with its unit, where it came from, and how sure we are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Provenance = Literal["measured", "predicted", "derived", "assumed"]
PROVENANCES: tuple[str, ...] = get_args(Provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A value in `unit`; `value is None` means unknown, and `reason` then says why.

    `low` and `high` bound a 95 % confidence interval, in the same unit.
    """

    value: float | None
    unit: str
    provenance: Provenance | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.value is None:
            if not self.reason:
                raise ValueError("a missing metric needs a reason")
        elif not math.isfinite(self.value):
            raise ValueError(f"a metric must be finite or missing, not {self.value}")
        elif self.provenance not in PROVENANCES:
            raise ValueError(f"a metric needs a provenance, one of {PROVENANCES}")

    @classmethod
    def missing(cls, unit: str, reason: str) -> Metric:
        return cls(value=None, unit=unit, provenance=None, reason=reason)

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "value": self.value,
            "unit": self.unit,
            "provenance": self.provenance,
            "low": self.low,
            "high": self.high,
        }
        if self.reason is not None:
            out["reason"] = self.reason
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Metric:
        return cls(
            value=data["value"],
            unit=data["unit"],
            provenance=data.get("provenance"),
            low=data.get("low"),
            high=data.get("high"),
            reason=data.get("reason"),
        )


#: Every metric of a rung, in the order it is shown, with its unit. JSON documents use these names.
METRIC_UNITS: dict[str, str] = {
    "step_time": "s",
    "speedup": "x",
    "tokens_per_second": "tokens/s",
    "mfu": "fraction",
    "model_flops_per_step": "FLOP",
    "hbm_peak_bytes": "bytes",
    "hbm_boundary_bytes_per_step": "bytes",
    "hbm_accessed_bytes_per_step": "bytes",
    "first_step_time": "s",
    "warmup_time": "s",
    "compile_time": "s",
    "compile_count": "count",
    "programs": "count",
    "cache_requests_per_step": "count",
    "cache_hit_rate": "fraction",
    "host_time_per_step": "s",
    "device_time_per_step": "s",
    "collectives_per_step": "count",
    "collective_bytes_per_step": "bytes",
    "collective_sent_bytes_per_step": "bytes",
    "collective_exposed_time": "s",
    "collective_hidden_time": "s",
    "replicated_bytes": "bytes",
    "scaling_efficiency": "fraction",
    "loss_max_abs_diff": "nat",
    "grad_norm_max_rel_diff": "fraction",
    "recorder_overhead": "fraction",
}
