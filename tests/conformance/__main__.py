"""`python -m tests.conformance`: runs the operator database, or a part of it, on device "tpu"."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.conformance import expected, pool
from tests.conformance.cells import CHECKS, DTYPES, MODES, Cell, Result, cells_of
from tests.conformance.matrix import Matrix


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--sample", type=int, metavar="N", help="N ops chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (default 0)")
    parser.add_argument("--op", action="append", metavar="NAME",
                        help="only this op; * and ? match, may be repeated")  # fmt: skip
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--check", action="append", choices=CHECKS)
    parser.add_argument("--few", type=int, metavar="K",
                        help="at most K samples a cell, spread evenly over them")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=600, help="seconds a cell may take")
    parser.add_argument("--optimized", action="store_true",
                        help="compile as users do, not as fast as possible")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("runs/conformance"),
                        help="where matrix.json and matrix.md go")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--update", action="store_true",
                        help="rewrite expected.toml for the ops that ran")  # fmt: skip
    return parser.parse_args(given)


def chosen_ops(names: Sequence[str], patterns: Sequence[str] | None, sample: int | None,
               seed: int) -> list[str]:  # fmt: skip
    """The ops of a run. Raises SystemExit where a pattern matches none."""
    ops = sorted(names)
    if patterns:
        for pattern in patterns:
            if not fnmatch.filter(ops, pattern):
                raise SystemExit(f"no op of torch's database matches {pattern!r}")
        ops = [o for o in ops if any(fnmatch.fnmatchcase(o, p) for p in patterns)]
    if sample is not None and sample < len(ops):
        ops = sorted(random.Random(seed).sample(ops, sample))
    return ops


def main(given: Sequence[str] | None = None) -> int:
    options = _arguments(given)
    from tests.conformance.samples import database

    ops = chosen_ops(list(database()), options.op, options.sample, options.seed)
    work: list[list[Cell]] = [
        list(cells_of(op, options.dtype or DTYPES, options.mode or MODES, options.check or CHECKS))
        for op in ops
    ]
    effort = pool.Effort(options.jobs, options.limit, options.few, options.optimized)
    results: list[Result] = []
    log = Console(stderr=True)
    options.out.mkdir(parents=True, exist_ok=True)
    done: set[str] = set()
    with (options.out / "results.jsonl").open("w", encoding="utf-8") as stored:

        def report(result: Result) -> None:
            results.append(result)
            stored.write(json.dumps(result.as_json()) + "\n")
            stored.flush()
            if result.cell.op not in done:
                done.add(result.cell.op)
                if len(done) % 20 == 0 or log.is_terminal:
                    log.print(f"{len(done)}/{len(ops)} {result.cell.op}", highlight=False)

        try:
            pool.run(pool.OPERATORS, work, effort, report)
        except pool.CannotStart as problem:
            raise SystemExit(str(problem)) from None
    if options.update:
        _update(results)
    matrix = Matrix(results, expected.load(), every_sample=options.few is None)
    matrix.store(options.out)
    if options.json:
        print(json.dumps(matrix.as_json(), indent=1))
    matrix.print(Console(stderr=options.json))
    return 1 if matrix.problems else 0


def _update(results: Sequence[Result]) -> None:
    before = expected.load()
    ran = {r.cell for r in results}
    ops = {c.op for c in ran}
    kept = [e for op, entries in before.by_op.items() if op not in ops for e in entries]
    # Cells of these ops that did not run keep their entries.
    checks = {c.check for c in ran}
    kept += [
        e for op in ops for e in before.by_op.get(op, ()) if not set(e.checks) & checks
    ]  # fmt: skip
    expected.write(sorted([*kept, *expected.entries_for(results, before)],
                          key=lambda e: (e.op, e.checks, e.modes, e.dtypes)))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
