"""How long `tpu-perf history` takes over 10,000 runs; run as a module of its own."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from tests.stored_ladders import ENVIRONMENT, FACTS, plan
from tpu_perf.record.metric import METRIC_UNITS, Metric
from tpu_perf.record.run import Run

LADDERS, RUNGS = 2_000, ("strict", "defer_and_fuse", "compile", "whole_step", "cpu_eager")


def write_runs(home: Path) -> None:
    """10,000 run directories with every metric, an hour apart."""
    rng = random.Random(0)
    for number in range(LADDERS):
        started = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
        for rung in RUNGS:
            metrics = {
                name: Metric(value=rng.lognormvariate(0, 0.03), unit=unit, provenance="measured")
                for name, unit in METRIC_UNITS.items()
            }
            run = Run(plan=plan(rung), environment=ENVIRONMENT, status="ok", facts=FACTS,
                      metrics=metrics, started_at=started.isoformat())  # fmt: skip
            directory = home / f"ladder{number}" / "rungs" / rung
            directory.mkdir(parents=True)
            (directory / "run.json").write_text(json.dumps(run.to_json()), encoding="utf-8")


def seconds_of(*arguments: str) -> float:
    """Wall time of one command, start of the interpreter included."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "tpu_perf", "history", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder))
        print(f"10,000 runs, index made anew: {seconds_of(folder):.2f} s")
        for what, options in (("newest 10 of each", ()), ("every run", ("--last", "0"))):
            times = [seconds_of(folder, *options) for _ in range(5)]
            print(f"10,000 runs, {what}: median {median(times):.2f} s, worst {max(times):.2f} s")


if __name__ == "__main__":
    main()
