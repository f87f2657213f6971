"""Programs and a host lane in, a step time out: what bounds it, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tpu_perf.hlo.memory import memory_profile
from tpu_perf.hlo.module import read_module
from tpu_perf.predict.compiled import Compiled
from tpu_perf.predict.flops_check import check_flops
from tpu_perf.predict.instruction_time import Constants, Times
from tpu_perf.predict.simulation import COMMUNICATION, Timeline, simulate

#: Steps simulated before the one that counts: the host runs ahead until it has to wait.
_STEPS = 3
VMEM_FLAG = "xla_tpu_scoped_vmem_limit_kib"
_BOUND_BY = {
    "mxu": "MXU", "hbm": "HBM", "dma": "HBM", "tail": "HBM", "vmem": "VMEM", "ici": "ICI",
    "ici back": "ICI", "dcn": "DCN", "host link": "host link", "scalar": "scalar unit",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvent:
    """The host works for `host_s`, then enqueues `program`, or waits for the device if None."""

    host_s: float
    program: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPrediction:
    """One execution of a program on each device. `peak_hbm_bytes` None where libtpu kept no
    buffer assignment; FLOPs are those of matrix multiplications and kernels."""

    name: str
    timeline: Timeline
    matmul_flops: float
    peak_hbm_bytes: int | None
    assumptions: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return self.timeline.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """One step in the steady state.

    `launches` are (program, begin, end) on the device, seconds from the step's begin. `busy_s`
    are seconds of the device by what bounds it; "idle" are those it waits for the host.
    """

    seconds: float
    bound_by: str
    host_s: float
    device_s: float
    exposed_communication_s: float
    busy_s: Mapping[str, float]
    flops: float
    peak_hbm_bytes: int | None
    launches: tuple[tuple[str, float, float], ...]
    assumptions: tuple[str, ...] = ()
    programs: Mapping[str, ProgramPrediction] = field(default_factory=dict, repr=False)


def predict_program(
    compiled: Compiled,
    *,
    analytic_flops: float | None = None,
    constants: Constants | None = None,
    kernel_cycles: Mapping[str, float] | None = None,
    order: Sequence[int] = (),
    init_args: str = "",
    spans: bool = False,
) -> ProgramPrediction:
    """Predict one execution of a compiled program.

    `analytic_flops` are those of one device (see `check_flops`); `kernel_cycles` and `order` as
    in `Times`; `init_args` are the flags it was compiled with, for the warning about them.

    Raises PredictionRefused where the program's FLOPs are not those asked for, HloProblem where
    its HLO is damaged.
    """
    checked = check_flops(compiled, analytic_flops)
    module = read_module(compiled.hlo)
    times = Times(
        target=compiled.target,
        partitions=compiled.partitions * compiled.replicas,
        order=order,
        constants=constants or Constants(),
        kernel_cycles=kernel_cycles or {},
        llo_cycles=compiled.llo_cycles,
    )
    timeline = simulate(module, times, spans=spans)
    profile = memory_profile(module)
    return ProgramPrediction(
        name=compiled.name,
        timeline=timeline,
        matmul_flops=checked.flops,
        peak_hbm_bytes=None if profile is None else profile.reserved_bytes,
        assumptions=tuple(_assumptions(compiled, timeline, init_args)),
    )


def _assumptions(compiled: Compiled, timeline: Timeline, init_args: str) -> list[str]:
    generation = compiled.target.generation
    found = []
    if timeline.work_s and VMEM_FLAG not in init_args and timeline.flops:
        found.append(
            f"no {VMEM_FLAG} given: matmuls are compiled for the default VMEM limit, which is up "
            "to a third slower than with a tuned one"
        )
    for queue, figures in (
        ("ici", ("ici_efficiency", "ici_latency_s")),
        ("host link", ("host_bytes_per_s",)),
    ):
        if timeline.queue_s.get(queue):
            found += [
                f"{name} {getattr(generation, name):g}: {generation.sources[name]}"
                for name in figures
            ]
    found += [
        f"{seconds * 1e3:.3g} ms by {source}"
        for source, seconds in timeline.work_s.items()
        if "assumed" in source or "unknown" in source or "lower bound" in source
    ]
    found += [
        f"loop %{name} counted once: its length is not known" for name in timeline.unknown_loops
    ]
    return found


def predict_step(
    programs: Mapping[str, ProgramPrediction], host_lane: Sequence[HostEvent]
) -> StepPrediction:
    """Two lanes: the host enqueues in its own time, the device executes in order.

    The same step is repeated, so that a host which runs ahead does. Raises KeyError where the
    lane names a program that is not there, ValueError where it enqueues none.
    """
    if not any(event.program is not None for event in host_lane):
        raise ValueError("the host lane enqueues no program")
    host = device = idle = 0.0
    begin = 0.0
    launches: list[tuple[str, float, float]] = []
    for _ in range(_STEPS):
        begin, idle, launches = device, 0.0, []
        for event in host_lane:
            host += event.host_s
            if event.program is None:
                host = max(host, device)
                continue
            start = max(host, device)
            idle += start - device
            device = start + programs[event.program].seconds
            launches.append((event.program, start, device))
    seconds = device - begin
    host_s = sum(event.host_s for event in host_lane)
    busy: dict[str, float] = {}
    for name, _, _ in launches:
        for unit, spent in programs[name].timeline.busy_s.items():
            busy[unit] = busy.get(unit, 0.0) + spent
    busy["idle"] = idle
    peaks = [programs[name].peak_hbm_bytes for name, _, _ in launches]
    return StepPrediction(
        seconds=seconds,
        bound_by=_bound(busy, idle, seconds),
        host_s=host_s,
        device_s=seconds - idle,
        exposed_communication_s=sum(busy.get(queue, 0.0) for queue in COMMUNICATION),
        busy_s=busy,
        flops=sum(programs[name].timeline.flops for name, _, _ in launches),
        peak_hbm_bytes=None if None in peaks else max(one or 0 for one in peaks),
        launches=tuple((name, a - begin, b - begin) for name, a, b in launches),
        assumptions=tuple(
            dict.fromkeys(one for name, _, _ in launches for one in programs[name].assumptions)
        ),
        programs=programs,
    )


def _bound(busy: Mapping[str, float], idle: float, seconds: float) -> str:
    if idle > seconds / 2:
        return "host"
    by_cause: dict[str, float] = {"host": idle}
    for unit, spent in busy.items():
        if unit != "idle":
            cause = _BOUND_BY.get(unit, unit)
            by_cause[cause] = by_cause.get(cause, 0.0) + spent
    return max(by_cause, key=lambda cause: by_cause[cause])
