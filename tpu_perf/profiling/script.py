"""The child process of `tpu-perf profile`: runs the user's script or module under a recording.

Run as `python -m tpu_perf.profiling.script JOB`, where JOB is a JSON object. The script finds
`sys.argv`, `sys.path` and `__main__` as without us, and its output goes where the user's does.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from tpu_perf.profiling.in_code import under_way
from tpu_perf.profiling.profile import Profile, Settings
from tpu_perf.profiling.schedule import Schedule
from tpu_perf.record.plan import WorkloadPlan
from tpu_perf.record.run import Facts

INTERRUPTED = 130


def main(text: str) -> int:
    """Run the job; the exit code is the script's own (1 for an exception, 130 for Ctrl-C)."""
    job = json.loads(text)
    profile = Profile(Path(job["directory"]), settings_of(job))
    under_way(profile)

    def interrupted(*_: Any) -> None:
        profile.interrupted = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    code = 0
    with contextlib.ExitStack() as around:
        if job["device"] is not None:
            from tpu_perf.profiling.device_redirect import redirected

            around.enter_context(redirected())
        profile.start()
        try:
            remains = _run(job)  # kept until the run is written: the job's model lives in it
        except SystemExit as end:
            profile.fail(end)
            code = _code_of(end)
        except KeyboardInterrupt as error:
            profile.fail(error)
            code = INTERRUPTED
        except BaseException as error:
            _print_traceback(error)
            profile.fail(error)
            code = 1
        else:
            profile.finish()
            del remains
    under_way(None)
    return code


def settings_of(job: dict[str, Any]) -> Settings:
    """The recording that the parent asked for."""
    what = {"script": job["target"], "is_module": job["is_module"], "arguments": job["arguments"],
            "device": job["device"]}  # fmt: skip
    chosen = {} if job["schedule"] is None else {"phases": Schedule(**job["schedule"])}
    return Settings(
        name=job["name"], what=WorkloadPlan(kind="script", params=what), steps=job["steps"],
        fence=job["fence"], details=job["details"], ring=job["ring"],
        facts=Facts(**job["facts"]), **chosen,
    )  # fmt: skip


def _run(job: dict[str, Any]) -> Any:
    target = job["target"]
    sys.argv = [target, *job["arguments"]]
    if job["is_module"]:
        sys.path[0] = os.getcwd()
        return runpy.run_module(target, run_name="__main__", alter_sys=True)
    sys.path[0] = str(Path(target).resolve().parent)
    return runpy.run_path(target, run_name="__main__")


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)  # what Python does with a message
    return 1


def _print_traceback(error: BaseException) -> None:
    """The traceback as the script alone would have it, without our frames and runpy's."""
    trace = error.__traceback__
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


if __name__ == "__main__":
    exit_code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of torch, XLA or the script may still be about; the run is written.
    os._exit(exit_code)
