"""Measures a row: contenders alternate in rounds of random order, one computing at a time."""

from __future__ import annotations

import math
import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.benchmarks.contenders import Spec
from tests.benchmarks.intervals import Ratio, median_difference, median_ratio, round_ratio
from tests.benchmarks.peer_environment import Peer
from tests.benchmarks.processes import Worker, own_python
from tests.benchmarks.rows import Pair

#: Losses of two contenders may differ by this much; more means different work.
TOLERANCE = 1e-4
_BURST_NS = 0.5e9
_MOST_UNITS = 200
#: The first unit after a pause refills caches and is not counted.
_UNCOUNTED = 1
_LEAST_UNITS = 3
#: Units of one op's calls between two changes of place, a few milliseconds each.
_UNITS_OF_A_CALL = 4
#: Times that variants in one process change places in a round. They share caches, so they can
#: take turns quickly, and the machine's drift then hits both alike.
_TURNS_IN_ONE_PROCESS = 6


class DifferentWork(Exception):
    """The contenders did not compute the same."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure. New processes give every run its own memory layout."""

    launches: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """A pair's ratio, and the median times behind it in nanoseconds."""

    pair: Pair
    ratio: Ratio
    first_ns: float
    second_ns: float


Say = Callable[[str], None]


def measure(pair: Pair, peer: Peer, effort: Effort, say: Say) -> Measurement:
    """Measure one pair. Raises PeerMissing, WorkerFailed or DifferentWork."""
    if pair.first.kind == "import":
        return _import_times(pair, effort, say)
    one = _compile_launch if pair.first.kind == "compile" else _step_launch
    firsts: list[float] = []
    seconds: list[float] = []
    ratios: list[float] = []
    for launch in range(effort.launches):
        say(f"  {pair.label}: launch {launch + 1} of {effort.launches}")
        for first, second in one(pair, peer, effort.rounds, random.Random(launch), say):
            firsts += first
            seconds += second
            ratios.append(round_ratio(first, second))
    return Measurement(pair, median_ratio(ratios), _median(firsts), _median(seconds))


def measure_together(
    pairs: Sequence[Pair], peer: Peer, effort: Effort, say: Say
) -> list[Measurement]:
    """Measure pairs that are variants of the same two processes, in turn within each round."""
    ratios: list[list[float]] = [[] for _ in pairs]
    times: list[Round] = [([], []) for _ in pairs]
    for launch in range(effort.launches):
        say(f"  {len(pairs)} pairs: launch {launch + 1} of {effort.launches}")
        order = random.Random(launch)
        with ExitStack() as stack:
            workers = []
            for spec in (pairs[0].first, pairs[0].second):
                python = peer.python() if spec.peer else own_python()
                workers.append(stack.enter_context(Worker(replace(spec, variant="plain"), python)))
            _check_evidence([worker.ready()["values"] for worker in workers])
            for _ in range(effort.rounds):
                for number, pair in enumerate(pairs):
                    sides: Round = ([], [])
                    start = order.randrange(2)
                    for side in (start, 1 - start, 1 - start, start):
                        variant = (pair.first, pair.second)[side].variant
                        taken = workers[side].run(_UNITS_OF_A_CALL + _UNCOUNTED, variant)
                        sides[side].extend(taken[_UNCOUNTED:])
                    ratios[number].append(round_ratio(*sides))
                    times[number][0].extend(sides[0])
                    times[number][1].extend(sides[1])
    return [
        Measurement(pair, median_ratio(ratio), _median(taken[0]), _median(taken[1]))
        for pair, ratio, taken in zip(pairs, ratios, times, strict=True)
    ]


def _import_times(pair: Pair, effort: Effort, say: Say) -> Measurement:
    """Fresh processes that import torch, with the entry points of backends and without."""
    say(f"  {pair.label}: {effort.launches * effort.rounds} times each way")
    taken: list[tuple[float, float]] = []
    for _ in range(effort.launches * effort.rounds):
        first, second = (_import_ns(s.variant == "autoload") for s in (pair.first, pair.second))
        taken.append((first, second))
    difference = median_difference([(a / 1e6, b / 1e6) for a, b in taken])
    return Measurement(pair, difference, *(_median(side) for side in zip(*taken, strict=True)))


_IMPORT = "import time; t = time.perf_counter_ns(); import torch; print(time.perf_counter_ns() - t)"


def _import_ns(autoload: bool) -> float:
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload))}
    done = subprocess.run(
        [str(own_python()), "-c", _IMPORT], env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def _median(values: Sequence[float]) -> float:
    import numpy as np

    return float(np.median(values))


Round = tuple[list[int], list[int]]


def _step_launch(
    pair: Pair, peer: Peer, rounds: int, order: random.Random, say: Say
) -> list[Round]:
    with ExitStack() as stack:
        started: dict[Spec, tuple[Worker, dict[str, Any]]] = {}
        for spec in (pair.first, pair.second):
            # Variants of one contender share a process: then nothing else differs.
            built = replace(spec, variant="plain")
            if built not in started:
                python = peer.python() if spec.peer else own_python()
                worker = stack.enter_context(Worker(built, python))
                started[built] = (worker, worker.ready())
        ready = [started[replace(s, variant="plain")] for s in (pair.first, pair.second)]
        _check_evidence([message["values"] for _, message in ready])
        # As many turns as leave each a burst worth its uncounted unit.
        fitting = _units(ready[0][1]["step_ns"]) // (2 * _LEAST_UNITS)
        turns = max(1, min(_TURNS_IN_ONE_PROCESS, fitting)) if len(started) == 1 else 1
        bursts = [
            (worker, max(_LEAST_UNITS, _units(message["step_ns"]) // turns), spec.variant)
            for (worker, message), spec in zip(ready, (pair.first, pair.second), strict=True)
        ]
        found = []
        for _ in range(rounds):
            sides: Round = ([], [])
            for _ in range(turns):
                start = order.randrange(2)
                for side in (start, 1 - start, 1 - start, start):
                    worker, units, variant = bursts[side]
                    sides[side].extend(worker.run(units + _UNCOUNTED, variant)[_UNCOUNTED:])
            found.append(sides)
        last = found[-1]
        say(f"    last round {round_ratio(*last):.3f}")
        return found


def _units(step_ns: float) -> int:
    return max(_LEAST_UNITS, min(_MOST_UNITS, math.ceil(_BURST_NS / step_ns)))


def _compile_launch(
    pair: Pair, peer: Peer, rounds: int, order: random.Random, say: Say
) -> list[Round]:
    """One cold process, then one that finds what the first left in the directory."""
    with tempfile.TemporaryDirectory(prefix="tpu_perf_benchmark_") as root:
        spec = replace(pair.first, directory=str(Path(root) / "programs"))
        messages = []
        for _ in range(2):
            with Worker(spec, own_python()) as worker:
                messages.append(worker.ready())
        cold, warm = messages
        _check_evidence([cold["values"], warm["values"]])
        say(f"    cold {cold['compile_ns'] / 1e9:.2f} s, warm {warm['compile_ns'] / 1e9:.2f} s")
        return [([warm["compile_ns"]], [cold["compile_ns"]])]


def _check_evidence(values: list[list[float]]) -> None:
    first, second = values
    # Written so that NaN counts as different.
    if not all(abs(a - b) <= TOLERANCE for a, b in zip(first, second, strict=True)):
        raise DifferentWork(f"the two sides computed different values: {first} and {second}")
