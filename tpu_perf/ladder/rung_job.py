"""The worker's side of one rung: set up, warm up, sample rounds on command, write the run."""

from __future__ import annotations

import gc
import math
import resource
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from tpu_perf.engines.interface import ENGINES, RecordsApart, Session, Span
from tpu_perf.ladder.environment import describe_environment
from tpu_perf.ladder.protocol import Message, WorkerSide
from tpu_perf.ladder.sampling import judge_warmth
from tpu_perf.record.events import STEP_COLUMNS
from tpu_perf.record.plan import Plan
from tpu_perf.record.run import Facts, Run
from tpu_perf.record.store import RunWriter, table_of_rows
from tpu_perf.recorder import Recorder, record_into
from tpu_perf.recorder.detailed import DetailedRecorder
from tpu_perf.recorder.machine_load import OtherLoad
from tpu_perf.recorder.sites import Sites
from tpu_perf.workloads.interface import WORKLOADS
from tpu_perf.workloads.user_code import describe

_LANE_STEPS = 3
#: Steps that are looked into, after all timed ones: op by op, with XLA's profiler on.
_PROBE_STEPS = 2
#: The first steps are recorded with the place of every op, as probe steps are: a whole step runs
#: its Python only while it is captured, which is in these.
_CAPTURING_STEPS = 2


def run_rung_job(parent: WorkerSide, job: Message) -> None:
    """Obey `warm_up`, `round` and `finish` until the run is written."""
    rung = RungJob(parent, Plan.from_json(job["plan"]), Path(job["directory"]), job["started_at"])
    try:
        rung.set_up()
        while True:
            command = parent.command()
            if command["command"] == "warm_up":
                rung.warm_up()
            elif command["command"] == "round":
                rung.sample_round(command["round"])
            else:
                rung.finish(command)
                return
    except BaseException:
        rung.save_tables()  # what was measured until now stays readable
        parent.reply("facts", facts=rung.facts.to_json(), warnings=rung.warnings)
        raise


class RungJob:
    """One rung in its process: the session, the recorder, and the rows of the step table."""

    def __init__(self, parent: WorkerSide, plan: Plan, directory: Path, started_at: str) -> None:
        self.plan = plan
        self.facts = Facts()
        self.warnings: list[str] = []
        self._parent = parent
        self._writer = RunWriter(directory)
        self._started_at = started_at
        self._recorder = Recorder()
        self._detailed = DetailedRecorder(Sites())
        self._others = OtherLoad()
        self._rows: list[tuple[Any, ...]] = []
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        assert self._session is not None, "set_up comes first"
        return self._session

    def set_up(self) -> None:
        """Build model, data and optimizer, and move them to the device."""
        import torch

        plan = self.plan
        start = time.perf_counter_ns()
        if plan.threads is not None:
            torch.set_num_threads(plan.threads)
        workload = WORKLOADS.get(plan.workload.kind).build(plan.workload, plan.seed)
        engine = ENGINES.get(plan.engine)
        with record_into(self._detailed):
            self._session = engine.open(plan, workload)
        torch.manual_seed(plan.seed)  # dropout begins here, as in the reference
        kind, count = engine.device()
        self._environment = describe_environment(kind, count)
        self.facts = replace(
            self.facts,
            tokens_per_step=workload.tokens_per_step,
            samples_per_step=workload.samples_per_step,
            parameters=sum(p.numel() for p in workload.module.parameters()) or None,
            setup_ns=time.perf_counter_ns() - start,
        )
        self._parent.reply("ready", environment=self._environment.to_json(), rss=_peak_rss())

    def warm_up(self) -> None:
        """The first step, then steps until the rung is warm or has had its chance."""
        self._step("first", -1)
        durations: list[float] = []
        compiles: list[int] = []
        limit = self.plan.sampling.max_warmup_steps
        warmth = judge_warmth(durations, compiles, self.plan.sampling)
        while not warmth.warm and len(durations) < limit:
            seconds, compiled = self._step("warmup", -1)
            durations.append(seconds)
            compiles.append(compiled)
            warmth = judge_warmth(durations, compiles, self.plan.sampling)
            self._parent.reply("progress", phase="warm-up", step=len(self._rows), seconds=seconds)
        if not warmth.warm:
            self.warnings.append(f"not warm after {len(durations)} warm-up steps: {warmth.note}")
        self.facts = replace(
            self.facts,
            warm_at_step=len(self._rows) if warmth.warm else None,
            warm_note=warmth.note,
        )
        self.save_tables()
        seconds = median(durations[-self.plan.sampling.quiet_steps :])
        self._parent.reply("warm", warm=warmth.warm, seconds=seconds, rss=_peak_rss())

    def sample_round(self, index: int) -> None:
        """The timed steps of one round, and some with the recorder off, first in every other
        round, so that drift within a round favours neither."""
        timed = self.plan.sampling.steps_per_round
        blocks = [("timed", timed), ("bare", max(1, timed // 2))]
        if index % 2:
            blocks.reverse()
        seconds = []
        with self._others.watching():
            for phase, count in blocks:
                for _ in range(count):
                    took, compiled = self._step(phase, index)
                    if phase == "timed" and compiled:
                        self._late_miss(index, compiled)
                    elif phase == "timed":
                        seconds.append(took)
        self.save_tables()
        gc.collect()  # in the pause, so that it falls into no timed step
        self._parent.reply("round_done", round=index, seconds=median(seconds) if seconds else None)

    def finish(self, command: Message) -> None:
        """Probe the lanes, add what the parent knows, and write the run."""
        plan, session = self.plan, self.session
        with record_into(self._recorder):
            lanes = session.measure_lanes(len(self._rows), _LANE_STEPS)
        self._look_inside()
        programs = session.programs()
        if programs is not None:
            self._writer.write_programs(programs)
            session.write_programs(self._writer.partial / "programs")
        self.save_tables()
        self.facts = replace(
            self.facts,
            **command["facts"],
            host_time_per_step_ns=lanes.host_ns,
            device_time_per_step_ns=lanes.device_ns,
            lane_note=lanes.note,
            hbm_peak_bytes=session.peak_bytes(),
            dropped_events=self._recorder.dropped_events + self._detailed.dropped_events,
            recorder_ns_per_event=self._recorder.cost_per_event_ns(),
            other_cpu_share=self._others.share,
            source={**self.facts.source, **session.notes(), **command["source"]},
        )
        run = Run(
            plan=plan,
            environment=self._environment,
            status="ok",
            facts=Facts.from_json(self.facts.to_json()),
            warnings=(*self.warnings, *command["warnings"]),
            started_at=self._started_at,
        )
        self._writer.finish(run)
        self._parent.reply("finished")

    def save_tables(self) -> None:
        """Write what was recorded so far; called only while nothing is timed."""
        for recorder in (self._recorder, self._detailed):
            self._writer.write_events(recorder.drain())
        self._writer.write_steps(table_of_rows(STEP_COLUMNS, self._rows))

    def _look_inside(self) -> None:
        """Steps that say which line, module and instruction took what; none of them is timed. The
        rung has its result by now, so a failure here is a warning."""

        def probe() -> list[Span]:
            first = len(self._rows)
            for _ in range(_PROBE_STEPS):
                self._step("probe", -1)
            return [(row[0], row[3], row[5]) for row in self._rows[first:]]

        try:
            tables = self.session.look_inside(probe, self._detailed)
        except Exception as error:
            self.warnings.append(f"the steps could not be looked into: {describe(error)}")
            return
        for name, table in tables.items():
            self._writer.write_detail(name, table)
        if isinstance(self.session, RecordsApart):
            for row in self.session.recorded_apart(len(self._rows), self._detailed):
                times = (row.start_ns, row.dispatched_ns, row.end_ns)
                numbers = (row.compiles, row.loss, row.grad_norm)
                self._rows.append((len(self._rows), row.phase, -1, *times, *numbers))

    def _step(self, phase: str, round_index: int) -> tuple[float, int]:
        """One fenced step; returns its seconds and how many programs it compiled."""
        session, index = self.session, len(self._rows)
        placed = index < _CAPTURING_STEPS or phase == "probe"
        recorder = self._detailed if placed else self._recorder
        with record_into(None if phase == "bare" else recorder):
            recorder.begin_step(index)
            compiled_before = session.compile_count()
            start = time.perf_counter_ns()
            session.step(index)
            dispatched = time.perf_counter_ns()
            session.fence()
            end = time.perf_counter_ns()
            recorder.end_step()
        compiles = session.compile_count() - compiled_before
        outcome = session.outcome()
        self._rows.append(
            (
                *(index, phase, round_index, start, dispatched, end, compiles),
                *(outcome.loss, outcome.grad_norm),
            )
        )
        if index < self.plan.sampling.numerics_steps:
            self._note_numerics(index, outcome.loss, outcome.grad_norm)
        return (end - start) / 1e9, compiles

    def _note_numerics(self, step: int, loss: float | None, norm: float | None) -> None:
        for name, values, value in (
            ("loss", self._losses, loss),
            ("gradient norm", self._norms, norm),
        ):
            if value is None or len(values) < step:
                continue  # not told, or not finite before
            if not math.isfinite(value):
                self.warnings.append(f"the {name} of step {step} is {value}")
                continue
            values.append(value)
        self.facts = replace(self.facts, losses=tuple(self._losses), grad_norms=tuple(self._norms))

    def _late_miss(self, round_index: int, compiled: int) -> None:
        self.warnings.append(
            f"step {len(self._rows) - 1} in round {round_index} compiled {compiled} program(s) "
            "after warm-up; it is kept in the table and left out of the step time"
        )


def _peak_rss() -> int:
    """Peak resident bytes of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
