"""Command line: `python -m tests.validation --operators [--json] [--rows FILE.yaml]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from tpu_perf.predict.libtpu import ENVIRONMENT

os.environ.update(ENVIRONMENT)  # before jax is imported

from rich.console import Console
from rich.table import Table

from tests.validation.operators import ROWS, OperatorRow, summary, validate_operators
from tpu_perf.errors import TpuPerfError
from tpu_perf.predict.compile_cache import CompileCache
from tpu_perf.predict.compiler import Limits

MOST_MEDIAN_ERROR = 0.10


def main() -> int:
    """1 if the median error is above what was promised."""
    options = _parser().parse_args()
    limits = Limits(seconds=options.limit_s)
    try:
        with CompileCache(
            options.cache, limits, lambda told: print(told, file=sys.stderr)
        ) as cache:
            rows = validate_operators(cache, options.rows or ROWS)
    except TpuPerfError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    document = summary(rows)
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        _print_table(rows, document)
    median = document["all"]["median_abs_error"]
    return 0 if median is not None and median <= MOST_MEDIAN_ERROR else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.validation", description=__doc__)
    parser.add_argument("--operators", action="store_true", required=True, help="single operators")
    parser.add_argument("--rows", type=Path, help="rows to check instead of the shipped ones")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--cache", type=Path, help="directory for compiled programs")
    parser.add_argument(
        "--limit-s", type=float, default=600.0, help="seconds a compile may take (default 600)"
    )
    return parser


def _print_table(rows: list[OperatorRow], document: dict[str, object]) -> None:
    table = Table("operator", "measured", "predicted", "time error", "fitted", "sources")
    for row in rows:
        if row.predicted is None or row.error is None:
            cells = ("not compiled", "", "", row.reason or "")
        else:
            cells = (
                f"{row.predicted:.4g} {row.unit}",
                f"{row.error:+.1%}",
                "yes" if row.fitted else "no",
                "; ".join(row.sources),
            )
        table.add_row(row.name, f"{row.measured:.4g} {row.unit}", *cells)
    console = Console()
    console.print(table)
    for name in ("all", "not_fitted"):
        figures = document[name]
        assert isinstance(figures, dict)
        if figures["rows"]:
            console.print(
                f"{name.replace('_', ' ')}: {figures['rows']} rows, median "
                f"{figures['median_abs_error']:.1%}, worst {figures['worst_abs_error']:.1%}"
            )


if __name__ == "__main__":
    sys.exit(main())
