"""Where work stands under the roofline: min(peak FLOP/s, intensity x memory bandwidth)."""

from __future__ import annotations

from dataclasses import dataclass

from tpu_perf.chips import find_chip
from tpu_perf.record.metric import Metric, Provenance
from tpu_perf.record.run import Environment, Facts

Bound = str  # compute | memory | unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one device can do; None where it is not known. `bytes_source` says whence."""

    flops_per_s: float | None
    bytes_per_s: float | None
    assumed: bool
    flops_source: str
    bytes_source: str

    @property
    def ridge(self) -> float | None:
        """FLOP per byte above which arithmetic is the limit."""
        if self.flops_per_s is None or self.bytes_per_s is None:
            return None
        return self.flops_per_s / self.bytes_per_s


def machine_of(facts: Facts, environment: Environment | None) -> Machine:
    """The peak that the run recorded, and the bandwidth of the chip table for a chip it knows."""
    kind = None if environment is None else environment.device_kind
    chip = None if kind is None else find_chip(kind)
    if chip is None:
        return Machine(
            flops_per_s=facts.peak_flops_per_s or None,
            bytes_per_s=None,
            assumed=facts.peak_provenance == "assumed",
            flops_source=facts.peak_source or "not known",
            bytes_source=f"the memory bandwidth of device {kind!r} is not known",
        )
    return Machine(
        flops_per_s=facts.peak_flops_per_s or None,
        bytes_per_s=chip.hbm_bytes_per_s / chip.devices_per_chip,
        assumed=True,
        flops_source=facts.peak_source or "not known",
        bytes_source=f"{chip.name}: {chip.source}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """`reached`: share of the attainable FLOP/s. `bound`: which roof is above."""

    reached: Metric
    bound: Bound


def position(
    flops: float | None, moved: float | None, device_s: float | None, machine: Machine
) -> Position:
    """flops / device_s against min(peak, flops / moved x bandwidth).

    Without a bandwidth the roof is the peak alone and the bound unknown. Above 1 is refused: then
    FLOPs, time or peak is wrong.
    """
    if not flops:
        reason = "no FLOPs" if flops == 0 else "its FLOPs are not known"
        return Position(reached=Metric.missing("fraction", reason), bound="unknown")
    if machine.flops_per_s is None:
        missing = Metric.missing("fraction", "the peak FLOP/s of this device is not known")
        return Position(reached=missing, bound="unknown")
    roof, bound = machine.flops_per_s, "unknown"
    if machine.bytes_per_s is not None and moved:
        memory = flops / moved * machine.bytes_per_s
        bound = "memory" if memory < roof else "compute"
        roof = min(roof, memory)
    if not device_s:
        missing = Metric.missing("fraction", "its device time is not known")
        return Position(reached=missing, bound=bound)
    reached = flops / device_s / roof
    if reached > 1:
        missing = Metric.missing(
            "fraction",
            f"refused: {reached:.0%} of what the {bound if bound != 'unknown' else 'peak'} roof "
            "allows; FLOPs, device time, bytes or the machine's figures are wrong",
        )
        return Position(reached=missing, bound=bound)
    provenance: Provenance = "assumed" if machine.assumed else "derived"
    return Position(
        reached=Metric(value=reached, unit="fraction", provenance=provenance), bound=bound
    )
