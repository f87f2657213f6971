"""One sentence per rung: what limits it, and what changed from the rung before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tpu_perf.analysis.comparison import (
    break_even_steps,
    speedup,
    startup_comparable,
    startup_cost,
)
from tpu_perf.analysis.lanes import breakdown
from tpu_perf.analysis.program_cache import events_per_step, loaded_share
from tpu_perf.analysis.quantities import byte_count, count, digits, percent, seconds
from tpu_perf.analysis.rung_record import RungRecord
from tpu_perf.analysis.sharding_surprises import surprises

Limit = Literal[
    "host-bound",
    "device-bound",
    "compute-bound",
    "memory-bound",
    "compile-bound",
    "serialised",
    "unknown",
]

#: A lane that is busy for this share of the step fills it.
FULL = 0.75
#: Without a measured device lane: the share of the step that one side must have.
DOMINANT = 0.6
#: MFU above which arithmetic is the limit: real programs rarely pass 80 % of a GEMM's rate.
COMPUTE_MFU = 0.5
#: Timed steps that compile, as a share, above which compiling is the limit.
LATE_SHARE = 0.25
#: A rung whose start-up costs more than this many of its steps is bound by compiling at any
#: length people use to try something out.
COMPILE_STEPS = 1_000
#: Below this device time per program, overhead per program explains as much as traffic does.
OVERHEAD_S = 50e-6
#: Ratio closer to one than this is no difference, where there is no interval to ask.
SAME = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits a rung, and the numbers that say so."""

    limit: Limit
    evidence: str


def sentence(rung: RungRecord, before: RungRecord | None, others: list[RungRecord]) -> str:
    """The `why` of a measured rung; `before` is the nearest measured rung above it."""
    verdict = decide(rung, others)
    text = f"{verdict.limit}: {verdict.evidence}"
    if before is not None:
        text += f"; {compared(before, rung)}"
    return "; ".join([text, *surprises(rung)])


def decide(rung: RungRecord, others: list[RungRecord]) -> Verdict:
    """Which limit holds. Compiling is asked first, because it hides every other limit."""
    step = rung.value("step_time")
    late = _late_share(rung)
    if late >= LATE_SHARE:
        return Verdict(
            limit="compile-bound",
            evidence=f"{late:.0%} of the timed steps compiled or loaded a program",
        )
    if step is None:
        return Verdict(limit="unknown", evidence="no step time")
    steady = _steady(rung, step, others)
    startup = startup_cost(rung) or 0.0
    if startup > COMPILE_STEPS * step:
        return Verdict(
            limit="compile-bound",
            evidence=(
                f"its {seconds(startup)} of start-up cost as much as {count(startup // step)} "
                f"steps of {seconds(step)}; once warm {steady.limit}, {steady.evidence}"
            ),
        )
    return steady


def _late_share(rung: RungRecord) -> float:
    timed = rung.measured.phase("timed")
    return float((timed["compiles"] > 0).mean()) if len(timed) else 0.0


def _steady(rung: RungRecord, step: float, others: list[RungRecord]) -> Verdict:
    device, host = rung.value("device_time_per_step"), rung.value("host_time_per_step")
    if device is None or host is None:
        return _without_device_lane(rung, step, others)
    lanes = _lanes(host, device, step)
    if max(host, device) >= FULL * step:
        if host > device:
            idle = max(0.0, 1 - device / step)
            return Verdict(
                limit="host-bound",
                evidence=f"{lanes}, so the device idles {idle:.0%}{_per_op(rung, min(host, step))}",
            )
        return _device_bound(rung, device, lanes, others)
    if host + device >= FULL * step:
        return Verdict(
            limit="serialised", evidence=f"{lanes}: neither fills it, they wait for each other"
        )
    return Verdict(limit="unknown", evidence=f"{lanes}: neither explains it")


def _lanes(host: float, device: float, step: float) -> str:
    """Both lanes against the step. The probe that tells them apart can slow the host down."""
    if max(host, device) > 1.05 * step:
        return (
            f"under the probe the host is busy {seconds(host)} and the device {seconds(device)}, "
            f"without it a step takes {seconds(step)}"
        )
    return (
        f"the host is busy {seconds(host)} and the device {seconds(device)} of a "
        f"{seconds(step)} step"
    )


def _per_op(rung: RungRecord, host: float) -> str:
    """How many ops and programs the host issues, and what one costs it."""
    ops = events_per_step(rung.measured, "dispatch")
    programs = rung.value("cache_requests_per_step")
    if ops:
        through = "" if programs is None else f" through {count(programs)} programs"
        return f": {count(ops)} ops a step{through}, {seconds(host / ops)} of host time per op"
    if programs:
        return f": {count(programs)} programs a step, {seconds(host / programs)} each"
    return ""


def _without_device_lane(rung: RungRecord, step: float, others: list[RungRecord]) -> Verdict:
    """Only the host's clock is known: what it did itself against where it gave way to XLA."""
    parts = breakdown(rung.measured)
    if parts is None:
        return _one_lane(rung)
    own = parts.share("python", "dispatch", "flush", "fallback")
    waiting = parts.share("execute", "sync", "fence", "transfer")
    if own >= DOMINANT:
        return Verdict(
            limit="host-bound",
            evidence=(
                f"{own:.0%} of a {seconds(step)} step is the host's own work"
                f"{_per_op(rung, own * step)}"
            ),
        )
    split = f"{waiting:.0%} of a {seconds(step)} step is spent in or waiting for XLA"
    if waiting >= DOMINANT:
        return _device_bound(rung, waiting * step, split, others)
    return Verdict(limit="unknown", evidence=f"{split}, {own:.0%} on the host's own work")


def _one_lane(rung: RungRecord) -> Verdict:
    """torch on the CPU: there is no second lane, and no events to split the only one."""
    mfu = rung.value("mfu")
    if mfu is None:
        return Verdict(limit="unknown", evidence="no events and no MFU to tell")
    limit: Limit = "compute-bound" if mfu >= COMPUTE_MFU else "unknown"
    tail = "" if mfu >= COMPUTE_MFU else "; no events say where the rest goes"
    return Verdict(limit=limit, evidence=f"it reaches {percent(mfu)} of the peak{tail}")


def _device_bound(rung: RungRecord, device: float, lanes: str, others: list[RungRecord]) -> Verdict:
    mfu = rung.value("mfu")
    if mfu is not None and mfu >= COMPUTE_MFU:
        return Verdict(
            limit="compute-bound",
            evidence=f"{lanes}, at {percent(mfu)} of the peak FLOP/s{_intensity(rung)}",
        )
    leaner = _leaner(rung, device, others)
    if leaner is not None:
        return Verdict(limit="memory-bound", evidence=f"{lanes}; {leaner}")
    if mfu is None:
        return Verdict(limit="device-bound", evidence=f"{lanes}; MFU is not known")
    return Verdict(
        limit="device-bound",
        evidence=f"{lanes}, at {percent(mfu)} of the peak FLOP/s{_intensity(rung)}; "
        "this device's memory bandwidth is not known",
    )


def _intensity(rung: RungRecord) -> str:
    flops, moved = rung.value("model_flops_per_step"), rung.value("hbm_boundary_bytes_per_step")
    if not flops or not moved:
        return ""
    return f" and {digits(flops / moved)} FLOP per byte across program boundaries"


def _leaner(rung: RungRecord, device: float, others: list[RungRecord]) -> str | None:
    """Evidence of a memory limit: another rung does the same FLOPs in clearly less device time
    while moving clearly fewer bytes, and overhead per program is too small to explain it."""
    moved, flops = rung.value("hbm_boundary_bytes_per_step"), rung.value("model_flops_per_step")
    programs = rung.value("cache_requests_per_step")
    if moved is None or flops is None or not programs or device / programs < OVERHEAD_S:
        return None
    for other in others:
        their_bytes = other.value("hbm_boundary_bytes_per_step")
        their_device = other.value("device_time_per_step")
        if their_bytes is None or their_device is None:
            continue
        same_work = other.value("model_flops_per_step") == flops and _precision(other) == (
            _precision(rung)
        )
        if same_work and their_bytes <= 0.75 * moved and their_device <= 0.85 * device:
            return (
                f"{other.name} does the same FLOPs in {1 - their_device / device:.0%} less device "
                f"time with {byte_count(their_bytes)} instead of {byte_count(moved)} "
                "across program boundaries"
            )
    return None


def _precision(rung: RungRecord) -> str | None:
    return None if rung.run is None else rung.run.plan.precision


def compared(before: RungRecord, rung: RungRecord) -> str:
    """How fast it is against the rung before, and what changed between them."""
    changes = [
        *_programs_changed(before, rung),
        *_bytes_changed(before, rung),
        *_startup_changed(before, rung),
    ]
    detail = f": {', '.join(changes)}" if changes else ""
    return f"{_pace(before, rung)}{detail}"


def _pace(before: RungRecord, rung: RungRecord) -> str:
    ratio = speedup(before, rung)
    if ratio.value is None:
        return f"not comparable with {before.name}"
    if ratio.low is not None and ratio.high is not None:
        same = ratio.low <= 1 <= ratio.high
    else:
        same = abs(ratio.value - 1) < SAME
    if same:
        return f"as fast as {before.name} within noise"
    if ratio.value > 1:
        return f"{digits(ratio.value)}x faster than {before.name}"
    return f"{digits(1 / ratio.value)}x slower than {before.name}"


def _programs_changed(before: RungRecord, rung: RungRecord) -> list[str]:
    old, new = before.value("cache_requests_per_step"), rung.value("cache_requests_per_step")
    if old is None or new is None or old == new:
        return []
    return [f"programs per step {count(old)} -> {count(new)}"]


def _bytes_changed(before: RungRecord, rung: RungRecord) -> list[str]:
    name = "hbm_boundary_bytes_per_step"
    old, new = before.value(name), rung.value(name)
    if not old or new is None or abs(new / old - 1) < 0.01:
        return []
    return [f"bytes across program boundaries {new / old - 1:+.0%}"]


def _startup_changed(before: RungRecord, rung: RungRecord) -> list[str]:
    old, new = startup_cost(before), startup_cost(rung)
    if old is None or new is None or abs(new - old) < 0.05 * max(old, new):
        return []
    if not startup_comparable(before, rung):
        share = loaded_share(rung.measured)
        if share < loaded_share(before.measured):
            return [f"start-up {seconds(new)}, where {before.name} loaded from the cache"]
        return [f"start-up {seconds(new)} with {share:.0%} of its ops loaded from the cache"]
    text = f"start-up {'+' if new > old else '-'}{seconds(abs(new - old))}"
    steps = break_even_steps(before, rung)
    return [f"{text} (repaid after {count(steps)} steps)" if steps and new > old else text]
