"""The parent's side of `tpu-perf profile`: starts the script's process and sees to its run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tpu_perf.chips import tpu_devices
from tpu_perf.errors import ConfigError
from tpu_perf.ladder.environment import describe_environment
from tpu_perf.ladder.failure import from_death, oom_kills
from tpu_perf.record.plan import NOT_SAMPLED, OptimizerPlan, Plan, WorkloadPlan
from tpu_perf.record.run import Facts, Run
from tpu_perf.record.store import PARTIAL_SUFFIX, RUN_FILE, seal_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be recorded; fields as the options of `tpu-perf profile`."""

    target: str
    is_module: bool
    arguments: Sequence[str]
    directory: Path
    device: str | None
    steps: str
    schedule: Mapping[str, int] | None
    fence: bool
    details: bool
    ring: int | None
    measures_peak: bool
    output_to_stderr: bool = False  # stdout is wanted for something else

    @property
    def name(self) -> str:
        return self.target if self.is_module else Path(self.target).stem


def check(job: Job) -> None:
    """Raises ConfigError for what can be seen to be wrong before anything runs."""
    if not job.is_module and not Path(job.target).is_file():
        raise ConfigError(
            f"there is no script {job.target}", hint="a module is named with -m MODULE"
        )
    if job.directory.exists():
        raise ConfigError(f"{job.directory} exists already", hint="name another with --out")


def default_directory(target: str) -> Path:
    name = Path(target).stem or "job"
    return Path("runs") / f"profile-{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def run_job(job: Job) -> int:
    """Run and record; returns the script's exit code, 130 for Ctrl-C. Whatever becomes of the
    script, the directory holds a readable run afterwards."""
    shutil.rmtree(_partial(job), ignore_errors=True)  # of a recording that was cut before
    environment = dict(os.environ)
    if job.device is not None:
        environment["TPU_PERF_AUTOLOAD"] = "1"
    killed_before = oom_kills()
    process = subprocess.Popen(
        [sys.executable, "-m", "tpu_perf.profiling.script", _text(job)],
        env=environment,
        stdout=sys.stderr if job.output_to_stderr else None,
    )
    code = _wait(process)
    if not (job.directory / RUN_FILE).exists():
        _seal(job, code, oom_kills() > killed_before)
    return INTERRUPTED if code == -signal.SIGINT else code if code >= 0 else 128 - code


INTERRUPTED = 130
#: Times that Ctrl-C is left to the script.
_PATIENCE = 2


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Ctrl-C reaches the script as well, being in our process group: it ends and writes its run.
    A third one kills it."""
    interrupts = 0
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts > _PATIENCE:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()


def _text(job: Job) -> str:
    facts: dict[str, Any] = {}
    if job.measures_peak and not tpu_devices():
        facts = _measured_peak()
    return json.dumps(
        {
            "target": job.target,
            "is_module": job.is_module,
            "arguments": list(job.arguments),
            "directory": str(job.directory),
            "device": job.device,
            "steps": job.steps,
            "schedule": None if job.schedule is None else dict(job.schedule),
            "fence": job.fence,
            "details": job.details,
            "ring": job.ring,
            "name": job.name,
            "facts": facts,
        }
    )


def _measured_peak() -> dict[str, Any]:
    """The facts of a float32 GEMM on this CPU, measured in a process of its own."""
    code = (
        "import dataclasses, json; from tpu_perf.ladder.peak import measure_peak; "
        "print(json.dumps(dataclasses.asdict(measure_peak('float32'))))"
    )
    environment = {**os.environ, "TPU_PERF_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        return {}
    peak = json.loads(done.stdout.strip().splitlines()[-1])
    return {f"peak_{name}": peak[name] for name in ("flops_per_s", "source", "provenance")}


def _partial(job: Job) -> Path:
    return job.directory.with_name(job.directory.name + PARTIAL_SUFFIX)


def _seal(job: Job, code: int, out_of_memory: bool) -> None:
    """The process died without writing its run: what it had saved becomes a failed one."""
    failure = from_death(code, "the recording", out_of_memory, "")
    plan = Plan(
        ladder="profile", rung=job.name,
        workload=WorkloadPlan(kind="script", params={"script": job.target}),
        optimizer=OptimizerPlan(name="unknown"), mode="unknown", precision="unknown",
        sampling=NOT_SAMPLED,
    )  # fmt: skip
    run = Run(plan=plan, environment=describe_environment("unknown", 0), status=failure.status,
              reason=failure.reason, facts=Facts())  # fmt: skip
    seal_run(job.directory, run)
