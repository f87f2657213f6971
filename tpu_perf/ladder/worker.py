"""A child process of the ladder: does one job, speaks over its two pipes, dies with its parent.

Run as `python -m tpu_perf.ladder.worker READ_FD WRITE_FD`. Standard output and error belong to
the log: whatever the user's code prints cannot disturb the protocol.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from tpu_perf.ladder.protocol import Message, WorkerSide


def main(arguments: list[str]) -> None:
    parent = WorkerSide(int(arguments[0]), int(arguments[1]))
    job = parent.command()
    try:
        _limit_threads(job.get("threads"))
        _jobs()[job["job"]](parent, job)
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        from tpu_perf.ladder.failure import from_exception

        failure = from_exception(error)
        parent.reply("failed", status=failure.status, reason=failure.reason)
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of torch, XLA or the user may still be about; there is nothing left to wait for.
    os._exit(0)


def _jobs() -> dict[str, Callable[[WorkerSide, Message], None]]:
    from tpu_perf.ladder.reference import run_reference_job
    from tpu_perf.ladder.rung_job import run_rung_job

    return {"rung": run_rung_job, "reference": run_reference_job}


def _limit_threads(threads: int | None) -> None:
    """Keep torch and XLA to so many cores; both size their pools by the cores they may use."""
    if threads is None or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))[:threads]
    os.sched_setaffinity(0, cores)


if __name__ == "__main__":
    main(sys.argv[1:])
