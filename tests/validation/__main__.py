"""Command line: `python -m tests.validation [--operators] [--rows FILE.yaml] [--json]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tpu_perf.predict.libtpu import ENVIRONMENT

os.environ.update(ENVIRONMENT)  # before jax is imported

from rich.console import Console
from rich.table import Table

from tests.validation import operators, published
from tpu_perf.errors import TpuPerfError
from tpu_perf.predict.compile_cache import CompileCache
from tpu_perf.predict.compiler import Limits

#: What was promised: median absolute errors.
MOST_ERROR = {"operators": 0.10, "steps": 0.08}
_NAMED_PARTS = 8


def main() -> int:
    """1 if the median error is above what was promised, or nothing could be predicted."""
    options = _parser().parse_args()
    limits = Limits(seconds=options.limit_s)
    try:
        with CompileCache(options.cache, limits, _say) as cache:
            median = (_operators if options.operators else _steps)(options, cache)
    except TpuPerfError as error:
        _say(f"error: {error}")
        return int(error.exit_code)
    most = MOST_ERROR["operators" if options.operators else "steps"]
    return 0 if median is not None and median <= most else 1


def _say(told: object) -> None:
    print(told, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.validation", description=__doc__)
    parser.add_argument(
        "--operators", action="store_true", help="single operators instead of training steps"
    )
    parser.add_argument("--rows", type=Path, help="rows to check instead of the shipped ones")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="these steps")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--cache", type=Path, help="directory for compiled programs")
    parser.add_argument(
        "--limit-s", type=float, default=3600.0, help="seconds a compile may take (default 3600)"
    )
    return parser


def _operators(options: argparse.Namespace, cache: CompileCache) -> float | None:
    rows = operators.validate_operators(cache, options.rows or operators.ROWS)
    document = operators.summary(rows)
    table = Table("operator", "measured", "predicted", "time error", "fitted", "sources")
    for row in rows:
        measured = f"{row.measured:.4g} {row.unit}"
        if row.predicted is None or row.error is None:
            table.add_row(row.name, measured, "not compiled", "", "", row.reason)
            continue
        predicted, fitted = f"{row.predicted:.4g} {row.unit}", "yes" if row.fitted else "no"
        sources = "; ".join(row.sources)
        table.add_row(row.name, measured, predicted, f"{row.error:+.1%}", fitted, sources)
    _print(options, document, table, ("all", "not_fitted"))
    return _median(document["all"])


def _steps(options: argparse.Namespace, cache: CompileCache) -> float | None:
    found = published.load(options.rows or published.ROWS)
    rows = published.validate_steps(cache, found, options.only)
    document = published.steps_document(rows)
    table = Table("step", "published", "predicted", "free host link", "error", "where it goes, ms")
    for row in rows:
        told = f"{row.published_s:.3f} s"
        if row.predicted_s is None or row.error is None or row.prediction is None:
            table.add_row(row.name, told, "not predicted", "", "", row.reason)
            continue
        busy = sorted(row.prediction.timeline.busy_s.items(), key=lambda one: -one[1])
        parts = ", ".join(f"{unit} {spent * 1e3:.0f}" for unit, spent in busy[:_NAMED_PARTS])
        predicted, free = f"{row.predicted_s:.3f} s", f"{row.free_host_s:.3f} s"
        table.add_row(row.name, told, predicted, free, f"{row.error:+.1%}", parts)
    _print(options, document, table, ("uncalibrated",))
    return _median(document["uncalibrated"])


def _median(figures: dict[str, Any]) -> float | None:
    median = figures["median_abs_error"]
    return None if median is None else float(median)


def _print(
    options: argparse.Namespace, document: dict[str, Any], table: Table, sums: tuple[str, ...]
) -> None:
    if options.json:
        print(json.dumps(document, indent=2))
        return
    console = Console()
    console.print(table)
    for name in sums:
        figures = document[name]
        if figures["rows"]:
            console.print(
                f"{name.replace('_', ' ')}: {figures['rows']} rows, absolute error: median "
                f"{figures['median_abs_error']:.1%}, worst {figures['worst_abs_error']:.1%}"
            )


if __name__ == "__main__":
    sys.exit(main())
