"""Builds ladder directories by hand, with events whose metrics can be worked out on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tpu_perf.record.events import EVENT_KINDS, PROGRAM_COLUMNS, STEP_COLUMNS, Tier
from tpu_perf.record.ladder import Ladder, LadderRung
from tpu_perf.record.plan import OptimizerPlan, Plan, SamplingPlan, WorkloadPlan
from tpu_perf.record.run import Environment, Facts, Run, Status
from tpu_perf.record.store import RunWriter, table_of_rows, write_ladder

MS = 1_000_000  # one millisecond in ns
ROUNDS = 6
STEPS_PER_ROUND = 2

ENVIRONMENT = Environment(
    hostname="testhost",
    os="Linux 6.1",
    cpu="Test CPU",
    cores=2,
    memory_bytes=8 * 2**30,
    python="3.11.9",
    versions={"torch": "2.13.0", "jax": "0.10.2"},
    device_kind="cpu",
    device_count=1,
)

FACTS = Facts(
    tokens_per_step=1_000,
    samples_per_step=4,
    parameters=1_000_000,
    model_flops_per_step=1e9,
    flops_convention="matmuls only; attention non-causal",
    peak_flops_per_s=100e9,
    peak_source="measured GEMM 2048^3 float32 on this CPU",
    peak_provenance="measured",
    losses=(5.0, 4.5, 4.0),
    grad_norms=(1.0, 2.0, 1.0),
    reference_losses=(5.0, 4.5, 4.001),
    reference_grad_norms=(1.0, 2.02, 1.0),
    numerics_tolerance=1e-2,
    host_time_per_step_ns=95 * MS,
    device_time_per_step_ns=20 * MS,
    lane_note="device time from a probe that replays the programs",
    warm_at_step=2,
    recorder_ns_per_event=300.0,
)


def plan(rung: str, **changes: Any) -> Plan:
    made = Plan(
        ladder="finetune",
        rung=rung,
        workload=WorkloadPlan(kind="transformers", params={"model": "qwen3", "layers": 4}),
        optimizer=OptimizerPlan(name="adamw", params={"lr": 1e-3}),
        mode="strict",
        sampling=SamplingPlan(
            rounds=ROUNDS,
            steps_per_round=STEPS_PER_ROUND,
            quiet_steps=3,
            max_warmup_steps=20,
            settle_fraction=0.05,
            numerics_steps=3,
            timeout_s=300,
        ),
    )
    return replace(made, **changes)


@dataclass
class Timeline:
    """Writes steps and events one after the other on one clock; every step is `step_ms` long.

    A step dispatches `ops` ops, each `op_ms` long, starting 1 ms apart from 1 ms after the
    step's start; inside the first `executes` of them program 0 is enqueued for `execute_ms`.
    The step function returns `fence_ms` before the end of the step.
    """

    ops: int = 4
    op_ms: float = 0.5
    executes: int = 4
    execute_ms: float = 0.2
    fence_ms: float = 5.0
    live_bytes: int = 1_000
    clock: int = 1_000 * MS
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    events: dict[str, list[tuple[Any, ...]]] = field(
        default_factory=lambda: {kind: [] for kind in EVENT_KINDS}
    )

    def step(
        self,
        phase: str,
        round_index: int,
        step_ms: float,
        *,
        compiles: int = 0,
        compile_ms: float = 0.0,
        tier: Tier = Tier.COMPILED,
        loss: float = 4.0,
    ) -> int:
        index = len(self.steps)
        start = self.clock
        end = start + round(step_ms * MS)
        dispatched = end - round(self.fence_ms * MS)
        self.steps.append((index, phase, round_index, start, dispatched, end, compiles, loss, 1.0))
        if phase != "bare":
            self._ops(index, start, Tier.COMPILED if compiles else Tier.MEMORY)
            for number in range(compiles):
                self._compile(index, start, number, compile_ms / compiles, tier)
        self.clock = end + 10 * MS  # the worker's own business between steps
        return index

    def _ops(self, step: int, start: int, first_tier: Tier) -> None:
        for op in range(self.ops):
            begin = start + (op + 1) * MS
            self.events["dispatch"].append(
                (begin, begin + round(self.op_ms * MS), "aten::mm", 0, step)
            )
            if op < self.executes:
                tier = first_tier if op == 0 else Tier.MEMORY
                self.events["execute"].append(
                    (begin, begin + round(self.execute_ms * MS), 0, int(tier), step)
                )
        self.events["memory"].append((start, self.live_bytes, self.live_bytes, step))
        self.events["memory"].append((start + MS, -self.live_bytes, 0, step))

    def _compile(self, step: int, start: int, program: int, ms: float, tier: Tier) -> None:
        half = round(ms * MS / 2)
        self.events["compile"].append(
            (start, start + 2 * half, program, int(tier), half, half, "shape", "model.py:7", step)
        )

    def warm_up(self, first_ms: float = 500.0, compile_ms: float = 300.0) -> None:
        self.step("first", -1, first_ms, compiles=2, compile_ms=compile_ms)
        self.step("warmup", -1, 150.0)

    def sample(self, step_ms: float, *, rounds: int = ROUNDS, bare_ms: float | None = None) -> None:
        for index in range(rounds):
            for _ in range(STEPS_PER_ROUND):
                self.step("timed", index, step_ms)
                if bare_ms is not None:
                    self.step("bare", index, bare_ms)


#: Two programs: 0 moves 1000 + 500 bytes and touches 4000; 1 is larger and never executed.
PROGRAMS: tuple[tuple[Any, ...], ...] = (
    (0, "key0", "mm", "op", 1, 1_000, 500, 4_000.0, 1e6, 0, 0),
    (1, "key1", "adamw", "op", 12, 9_000, 9_000, 50_000.0, 1e6, 0, 9_000),
)


def _whole(kind: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row with -1 in the columns that only a recorder with details fills."""
    return (*row, *[-1] * (len(EVENT_KINDS[kind].columns) - len(row)))


def write_run(
    directory: Path,
    timeline: Timeline,
    *,
    facts: Facts = FACTS,
    programs: Sequence[tuple[Any, ...]] = PROGRAMS,
    run: Run | None = None,
    **changes: Any,
) -> Path:
    """Write a run directory as a worker does. `changes` go to the plan."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    writer = RunWriter(directory)
    writer.write_events(
        {
            name: table_of_rows(EVENT_KINDS[name].columns, [_whole(name, row) for row in rows])
            for name, rows in timeline.events.items()
        }
    )
    writer.write_steps(table_of_rows(STEP_COLUMNS, timeline.steps))
    if programs:
        writer.write_programs(table_of_rows(PROGRAM_COLUMNS, programs))
    if run is None:
        run = Run(
            plan=plan(directory.name, **changes),
            environment=ENVIRONMENT,
            status="ok",
            facts=facts,
        )
    return writer.finish(run)


def write_ladder_of(
    directory: Path, names: Sequence[str], *, paths: Mapping[str, str] | None = None, **changes: Any
) -> Ladder:
    """Write ladder.json with these rungs; the first is the baseline."""
    paths = paths or {name: f"rungs/{name}" for name in names}
    fields: dict[str, Any] = {
        "name": "finetune",
        "id": "20260101-120000",
        "baseline": names[0],
        "rungs": tuple(LadderRung(name=name, run=paths[name]) for name in names),
        "config": {"name": "finetune"},
        "config_path": "ladders/finetune.yaml",
        "started_at": "2026-01-01T12:00:00Z",
        "finished_at": "2026-01-01T12:05:00Z",
        **changes,
    }
    ladder = Ladder(**fields)
    write_ladder(directory, ladder)
    return ladder


def warm_timeline(step_ms: float, *, bare_ms: float | None = None, **fields: Any) -> Timeline:
    """A timeline with a first step, one warm-up step and six rounds of two timed steps."""
    timeline = Timeline(**fields)
    timeline.warm_up()
    timeline.sample(step_ms, bare_ms=bare_ms)
    return timeline


def two_rungs(directory: Path) -> Path:
    """strict at 100 ms a step and whole_step at 40 ms, both complete."""
    write_ladder_of(directory, ["strict", "whole_step"])
    write_run(directory / "rungs/strict", warm_timeline(100.0, bare_ms=80.0))
    write_run(
        directory / "rungs/whole_step",
        warm_timeline(40.0, executes=1, ops=1),
        facts=replace(FACTS, host_time_per_step_ns=4 * MS, device_time_per_step_ns=39 * MS),
        mode="whole_step",
    )
    return directory


def partial_ladder(directory: Path) -> Path:
    """A ladder with one rung of every fate, among them a name and a reason full of markup."""
    nasty = "<script>alert(1)</script>[bold]"
    names = ["strict", "debug", "compile", "timed_out", "too_big", "cpu_inductor", "missing"]
    paths = {name: f"rungs/{name}" for name in names} | {nasty: "rungs/nasty", "torn": "rungs/torn"}
    write_ladder_of(directory, [*names, nasty, "torn"], paths=paths, finished_at=None)
    write_run(directory / "rungs/strict", warm_timeline(100.0, bare_ms=98.0))
    write_run(directory / "rungs/nasty", warm_timeline(50.0))
    write_run(directory / "rungs/torn", warm_timeline(50.0))
    (directory / "rungs/torn/run.json").write_text("{", encoding="utf-8")
    (directory / "rungs/debug.partial").mkdir()
    fates: dict[str, tuple[Status, str]] = {
        "compile": ("failed", "RuntimeError: [red]no lowering for <b>aten::foo</b>"),
        "timed_out": ("timeout", "no result after 300 s"),
        "too_big": ("does_not_fit", "needs 34.0 GiB of 16.0 GiB"),
        "cpu_inductor": ("skipped", "no C++ compiler on this machine"),
    }
    for name, (status, reason) in fates.items():
        run = Run(plan=plan(name), environment=ENVIRONMENT, status=status, reason=reason)
        write_run(directory / "rungs" / name, Timeline(), run=run)
    return directory
