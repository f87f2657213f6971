"""Command line: `python -m tests.benchmarks [--only NAME] [--json]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from tests.benchmarks.intervals import combined, holds, is_open
from tests.benchmarks.measuring import DifferentWork, Effort, Measurement, measure, measure_together
from tests.benchmarks.output import Result, machine, print_table
from tests.benchmarks.peer_environment import Peer, PeerMissing
from tests.benchmarks.processes import WorkerFailed
from tests.benchmarks.rows import ROWS, Pair, Row

#: Load average above which something else is clearly running.
_QUIET_LOAD = 0.5


def main() -> int:
    """Measure the rows asked for; 1 if one does not hold."""
    options = _parser().parse_args()
    rows = [row for row in ROWS if not options.only or row.name in options.only]
    described = machine()
    load = _warn_if_busy()
    peer = Peer(options.peer_python, _say)
    effort = Effort(options.launches, options.rounds)
    results = []
    for row in rows:
        _say(row.name)
        result = _measure_row(row, peer, effort)
        _say(f"  {row.name}: {result.note}")
        results.append(result)
    described["load_average_at_start"] = load
    if options.json:
        documents = [result.document() for result in results]
        print(json.dumps({"machine": described, "results": documents}, indent=2))
    else:
        print_table(results, described)
    return 1 if any(result.holds is False for result in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=[row.name for row in ROWS], metavar="NAME",
        help="measure this row (may be given several times): "
        + ", ".join(row.name for row in ROWS),
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--peer-python", type=Path, help="interpreter that has the peer installed")
    parser.add_argument(
        "--rounds", type=int, default=10, help="interleaved rounds per launch (default 10)"
    )
    parser.add_argument(
        "--launches", type=int, default=2, help="fresh processes per pair (default 2)"
    )
    return parser


def _measure_row(row: Row, peer: Peer, effort: Effort) -> Result:
    try:
        measured, missing = _measure_pairs(row.pairs, peer, effort)
    except DifferentWork as problem:
        return Result(row, None, None, None, False, str(problem))
    except (PeerMissing, WorkerFailed) as problem:
        return Result(row, None, None, None, None, str(problem))
    ratio = combined([m.ratio for m in measured], row.combine, row.at_least)
    notes = [_describe(m) for m in measured] + missing
    if is_open(ratio, row.limit):
        notes.append("the interval contains the limit")
    kept = holds(ratio, row.limit, row.at_least)
    return Result(row, ratio.value, ratio.low, ratio.high, kept, "; ".join(notes))


#: Rows may share their pairs (a median and a worst one); these are measured once.
_measured: dict[tuple[Pair, ...], tuple[list[Measurement], list[str]]] = {}


def _measure_pairs(
    pairs: tuple[Pair, ...], peer: Peer, effort: Effort
) -> tuple[list[Measurement], list[str]]:
    """The pairs' measurements, and what is said of those that a peer cannot run."""
    if pairs not in _measured:
        found: list[Measurement] = []
        missing: list[str] = []
        if pairs[0].first.kind == "ops":
            found = measure_together(pairs, peer, effort, _say)
        else:
            for pair in pairs:
                try:
                    found.append(measure(pair, peer, effort, _say))
                except WorkerFailed as problem:
                    # "Where it runs at all": a peer's failure is not ours, our own is.
                    if len(pairs) == 1 or not problem.spec.peer:
                        raise
                    missing.append(f"{pair.label}: TorchTPU cannot run it ({problem})")
        if not found:
            raise PeerMissing("; ".join(missing))
        _measured[pairs] = found, missing
    return _measured[pairs]


def _describe(measured: Measurement) -> str:
    first, second = measured.first_ns, measured.second_ns
    if measured.pair.first.kind == "memory":
        unit, scale = "bytes", 1.0
    else:
        unit, scale = ("s", 1e9) if max(first, second) > 1e9 else ("ms", 1e6)
    return (
        f"{measured.pair.label} {measured.ratio.value:.3f} "
        f"({first / scale:.2f} against {second / scale:.2f} {unit})"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _warn_if_busy() -> float | None:
    if not hasattr(os, "getloadavg"):
        return None
    load = os.getloadavg()[0]
    if load > _QUIET_LOAD:
        _say(f"warning: load average {load:.1f}: other work is running, so intervals will be wide")
    return round(load, 2)


if __name__ == "__main__":
    sys.exit(main())
