"""Why a rung did not finish: its status and one sentence, from an exception or a death."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from tpu_perf.engines.interface import DoesNotFit, RungUnavailable
from tpu_perf.errors import TpuPerfError
from tpu_perf.record.run import Status
from tpu_perf.workloads.user_code import describe

#: How XLA, torch's CPU allocator and the C++ runtime say that memory ran out.
_OUT_OF_MEMORY = (
    "RESOURCE_EXHAUSTED",
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
)
_OOM_COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))


@dataclass(frozen=True, slots=True)
class Failure:
    """The status of a run that is not ok, and its reason."""

    status: Status
    reason: str


def from_exception(error: BaseException) -> Failure:
    """What an exception in a worker means for its rung."""
    if isinstance(error, RungUnavailable):
        return Failure("skipped", str(error))
    if isinstance(error, DoesNotFit):
        return Failure("does_not_fit", str(error) or "it needs more memory than the device has")
    if isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY):
        return Failure("does_not_fit", describe(error))
    if isinstance(error, TpuPerfError):
        return Failure("failed", str(error))
    return Failure("failed", describe(error))


def from_death(exit_code: int, phase: str, out_of_memory: bool, log_text: str) -> Failure:
    """What the sudden end of a worker process means; `exit_code` is negative for a signal."""
    if exit_code < 0:
        how = f"was killed by {signal.Signals(-exit_code).name}"
    else:
        how = f"ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL and out_of_memory:
        return Failure("does_not_fit", f"the machine ran out of memory during {phase}")
    last = last_line(log_text)
    words = f"; its last words: {last}" if last else ""
    out = any(words in log_text[-4000:] for words in _OUT_OF_MEMORY)
    status: Status = "does_not_fit" if out else "failed"
    return Failure(status, f"the worker {how} during {phase}{words}")


def last_line(text: str) -> str:
    """The last line that says something, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def oom_kills() -> int:
    """How often the kernel has killed a process for memory, as far as it tells us."""
    total = 0
    for path in _OOM_COUNTERS:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total
