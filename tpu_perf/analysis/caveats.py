"""What a reader must know before trusting a rung's numbers: its warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tpu_perf.analysis import quantities
from tpu_perf.analysis.comparison import (
    break_even_steps,
    paired_rounds,
    startup_comparable,
    startup_cost,
    too_few_rounds,
)
from tpu_perf.analysis.intervals import MIN_FOR_INTERVAL, furthest, spread
from tpu_perf.analysis.numerics import outside_tolerance
from tpu_perf.analysis.program_cache import fallback_counts
from tpu_perf.analysis.rung_record import RungRecord, RunTables, durations
from tpu_perf.record.run import Environment

MAX_SPREAD = 0.10
MAX_EXTREME = 0.50
MIN_SAMPLES = 10
#: Where other processes took more of all cores' time than this, times are not the code's alone.
MAX_OTHERS = 0.10
#: A fenced step cannot be shorter than the device's work in it; this much is measuring error.
FENCE_SLACK = 0.8

#: Every warning of the analysis starts with one of these, so that completing a ladder again
#: replaces them and keeps those that the worker wrote.
TOPICS = (
    "not a TPU",
    "unstable samples",
    "few samples",
    "few rounds",
    "late compile",
    "numerics",
    "dropped events",
    "host fallback",
    "fence",
    "slower than baseline",
    "never breaks even",
    "MFU refused",
    "environment",
    "shared machine",
    "damaged tables",
)


def of_worker(warnings: Iterable[str]) -> tuple[str, ...]:
    """The warnings that did not come from here."""
    starts = tuple(f"{topic}: " for topic in TOPICS)
    return tuple(warning for warning in warnings if not warning.startswith(starts))


def warnings_of(rung: RungRecord, baseline: RungRecord | None) -> tuple[str, ...]:
    """All warnings of a measured rung. Its metrics must have been computed."""
    return (
        *_stand_in(rung),
        *_samples(rung.measured),
        *_shared_machine(rung),
        *_late_compiles(rung.measured),
        *(f"numerics: {sentence}" for sentence in outside_tolerance(rung.facts)),
        *_losses_not_comparable(rung),
        *_recording(rung),
        *_fence(rung),
        *_mfu(rung),
        *(() if baseline is None else _against(rung, baseline)),
    )


def _stand_in(rung: RungRecord) -> Iterator[str]:
    told = rung.facts.source.get("torch_tpu_device")
    if told:
        yield f"not a TPU: {told}"


def _samples(tables: RunTables) -> Iterator[str]:
    samples = durations(tables.timed)
    if samples.size < MIN_SAMPLES:
        yield f"few samples: {samples.size} timed steps, at least {MIN_SAMPLES} are wanted"
    deviation, extreme = spread(samples), furthest(samples)
    found = []
    if deviation > MAX_SPREAD:
        found.append(f"standard deviation {deviation:.0%} of the mean (limit {MAX_SPREAD:.0%})")
    if extreme > MAX_EXTREME:
        found.append(f"most extreme step {extreme:.0%} off the median (limit {MAX_EXTREME:.0%})")
    if found:
        yield f"unstable samples: {', '.join(found)}; something else may be running here"


def _shared_machine(rung: RungRecord) -> Iterator[str]:
    share = rung.facts.other_cpu_share
    if share is not None and share > MAX_OTHERS:
        yield (
            f"shared machine: other processes took {share:.0%} of its CPU time in the timed rounds "
            f"(limit {MAX_OTHERS:.0%}); step times are theirs as well"
        )


def _late_compiles(tables: RunTables) -> Iterator[str]:
    timed = tables.phase("timed")
    late = timed[timed["compiles"] > 0]
    if late.empty:
        return
    compiles = int(late["compiles"].sum())
    steps = ", ".join(str(step) for step in late["step"].head(5)) + ("..." if len(late) > 5 else "")
    events = tables.events("compile")
    events = events[events["step"].isin(late["step"])]
    differed = sorted({str(d) for d in events["differed"].dropna() if d})[:3]
    because = f"; what differed: {', '.join(differed)}" if differed else ""
    yield (
        f"late compile: {len(late)} of {len(timed)} timed steps ({steps}) compiled or loaded "
        f"{quantities.counted(compiles, 'program')} and are left out of step time{because}"
    )


def _losses_not_comparable(rung: RungRecord) -> Iterator[str]:
    for name in ("loss_max_abs_diff", "grad_norm_max_rel_diff"):
        reason = rung.metric(name).reason
        if reason and "cannot be compared" in reason:
            yield f"numerics: {reason}"


def _recording(rung: RungRecord) -> Iterator[str]:
    if rung.facts.dropped_events:
        yield (
            f"dropped events: {rung.facts.dropped_events:,} events were not kept, so counts, "
            "bytes and the breakdown of a step are too low"
        )
    fallbacks = fallback_counts(rung.measured)
    if fallbacks:
        listed = ", ".join(f"{op} x{number:,}" for op, number in list(fallbacks.items())[:8])
        more = f" and {len(fallbacks) - 8} more" if len(fallbacks) > 8 else ""
        yield f"host fallback: torch computed these ops on the host: {listed}{more}"


def _fence(rung: RungRecord) -> Iterator[str]:
    step, device = rung.value("step_time"), rung.value("device_time_per_step")
    if step is not None and device is not None and step < FENCE_SLACK * device:
        yield (
            f"fence: a step took {quantities.seconds(step)} but its device work takes "
            f"{quantities.seconds(device)}; dispatch was timed, not the work"
        )


def _mfu(rung: RungRecord) -> Iterator[str]:
    reason = rung.metric("mfu").reason
    if reason and reason.startswith("refused"):
        yield f"MFU refused: {reason.removeprefix('refused: ')}"


def _against(rung: RungRecord, baseline: RungRecord) -> Iterator[str]:
    if rung.name == baseline.name:
        return
    rounds = paired_rounds(baseline, rung)
    if too_few_rounds(rounds):
        yield (
            f"few rounds: the speed-up rests on {rounds} paired rounds and has no interval; "
            f"{MIN_FOR_INTERVAL} are needed"
        )
    speedup = rung.metric("speedup")
    if speedup.value is not None and speedup.value < 1 and (speedup.high or 0) < 1:
        yield f"slower than baseline: {speedup.value:.2f}x the speed of {baseline.name}"
    yield from _never_repaid(rung, baseline)
    yield from _unlike(rung, baseline)


def _never_repaid(rung: RungRecord, baseline: RungRecord) -> Iterator[str]:
    mine, theirs = startup_cost(rung), startup_cost(baseline)
    steps = rung.value("step_time"), baseline.value("step_time")
    if mine is None or theirs is None or mine <= 1.05 * theirs or None in steps:
        return
    if startup_comparable(baseline, rung) and break_even_steps(baseline, rung) is None:
        yield (
            f"never breaks even: its start-up takes {quantities.seconds(mine - theirs)} longer "
            f"than that of {baseline.name} and its step is no faster"
        )


def _unlike(rung: RungRecord, baseline: RungRecord) -> Iterator[str]:
    assert rung.run is not None
    here, there = rung.run.environment, None if baseline.run is None else baseline.run.environment
    if here is None or there is None:
        return
    differing = differences(here, there)
    if differing:
        yield f"environment: not measured under the same conditions as {baseline.name}: " + (
            "; ".join(differing)
        )


def differences(here: Environment, there: Environment) -> list[str]:
    """What makes two environments unlike, except for the device, which rungs may choose."""
    mine, other = here.to_json(), there.to_json()
    out = [
        f"{name} {mine[name]} against {other[name]}"
        for name in ("hostname", "os", "cpu", "cores", "python", "git_commit")
        if mine[name] != other[name]
    ]
    for package in sorted({*here.versions, *there.versions}):
        versions = here.versions.get(package), there.versions.get(package)
        if None not in versions and versions[0] != versions[1]:
            out.append(f"{package} {versions[0]} against {versions[1]}")
    return out
