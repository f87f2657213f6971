"""Worker processes that check cells; one that crashes or hangs costs its cell only.

A `Kind` says which module the workers run and how its cells and results look; the protocol is
that of `tests.conformance.worker`.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import IO, Any, Generic, TypeVar

from tests.conformance.cells import Cell, Result

#: Programs here run once, so compile time is all the time. The last flag keeps LLVM from
#: starting threads of its own in each of the workers.
_FAST_COMPILE = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
)

C = TypeVar("C")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Kind(Generic[C, R]):
    """`broken` makes the result of a cell whose worker died or ran out of time."""

    module: str
    result: Callable[[dict[str, Any]], R]
    broken: Callable[[C, str], R]
    #: Lists after which a worker is replaced: PJRT and dynamo keep some of what they compile.
    lists_per_worker: int = 60


OPERATORS: Kind[Cell, Result] = Kind(
    "tests.conformance.worker",
    Result.from_json,
    lambda cell, why: Result(cell, "failed", 1, 1, why),
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How a run is done: processes, seconds a cell may take, samples a cell (None: all), and
    whether programs are compiled as users compile them."""

    jobs: int
    limit_s: float
    few: int | None = None
    optimized: bool = False


class CannotStart(Exception):
    """A worker ended before it was ready; the message has its last words."""


class _Worker:
    def __init__(self, module: str, effort: Effort) -> None:
        environment = dict(os.environ)
        environment.pop("TORCH_TPU_CPU_FALLBACK", None)
        environment.pop("TPU_PERF_CPU_FALLBACK", None)
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        if not effort.optimized:
            flags = environment.get("XLA_FLAGS", "")
            environment["XLA_FLAGS"] = f"{flags} {_FAST_COMPILE}".strip()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module,
             *([] if effort.few is None else [str(effort.few)])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment, text=True,
        )  # fmt: skip
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.last_words: list[str] = []
        self.lists_done = 0
        threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()
        threading.Thread(target=self._listen, args=(self.process.stderr,), daemon=True).start()
        if self.lines.get() is None:
            self.process.wait()
            raise CannotStart("a worker process could not start: " + "\n".join(self.last_words))

    def _read(self, pipe: IO[str]) -> None:
        for line in pipe:
            self.lines.put(line)
        self.lines.put(None)

    def _listen(self, pipe: IO[str]) -> None:
        for line in pipe:
            self.last_words = [*self.last_words[-5:], line.strip()]

    def send(self, cells: Sequence[Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([asdict(c) for c in cells]) + "\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def run(
    kind: Kind[C, R], work: Sequence[Sequence[C]], effort: Effort, report: Callable[[R], None]
) -> None:
    """Check lists of cells (one list an op) in several processes; `report` gets each result.

    Raises CannotStart where a worker cannot even load the device.
    """
    waiting: queue.SimpleQueue[Sequence[C]] = queue.SimpleQueue()
    for cells in work:
        waiting.put(cells)
    lock = threading.Lock()

    def locked(result: R) -> None:
        with lock:
            report(result)

    count = max(1, min(effort.jobs, len(work)))
    with ThreadPoolExecutor(count) as threads:
        serving = [threads.submit(_serve, kind, waiting, effort, locked) for _ in range(count)]
        for one in serving:
            one.result()


def _serve(
    kind: Kind[C, R], waiting: queue.SimpleQueue[Sequence[C]], effort: Effort,
    report: Callable[[R], None],
) -> None:  # fmt: skip
    worker: _Worker | None = None
    try:
        while True:
            try:
                cells = list(waiting.get_nowait())
            except queue.Empty:
                return
            while cells:
                if worker is None or worker.lists_done >= kind.lists_per_worker:
                    if worker is not None:
                        worker.stop()
                    worker = _Worker(kind.module, effort)
                worker.lists_done += 1
                answered, problem = _one_list(kind, worker, cells, effort.limit_s, report)
                cells = cells[answered:]
                if problem is not None:
                    words = " ".join(worker.last_words)[-400:]
                    worker.stop()
                    worker = None
                    report(kind.broken(cells[0], f"{problem} {words}".strip()))
                    cells = cells[1:]
    finally:
        if worker is not None:
            worker.stop()


def _one_list(
    kind: Kind[C, R],
    worker: _Worker,
    cells: Sequence[C],
    limit_s: float,
    report: Callable[[R], None],
) -> tuple[int, str | None]:
    """How many cells were answered, and what ended the list early."""
    worker.send(cells)
    answered = 0
    while True:
        try:
            line = worker.lines.get(timeout=limit_s)
        except queue.Empty:
            return answered, f"timed out after {limit_s:.0f} s"
        if line is None:
            code = worker.process.wait()
            return answered, f"the process died (exit code {code})"
        message: dict[str, Any] = json.loads(line)
        if "result" in message:
            report(kind.result(message["result"]))
            answered += 1
        elif "done" in message:
            return answered, None
