"""`python -m tests.conformance.models`: other people's models, or some of them, on device "tpu"."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.conformance import pool
from tests.conformance.models import expected
from tests.conformance.models.cells import MODES, ModelCell, ModelResult
from tests.conformance.models.results import Results

MODELS: pool.Kind[ModelCell, ModelResult] = pool.Kind(
    "tests.conformance.models.worker",
    ModelResult.from_json,
    lambda cell, why: ModelResult(cell, "failed", why),
    lists_per_worker=20,
)

LIBRARIES = ("transformers", "diffusers", "timm")


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.models", description=__doc__)
    parser.add_argument("--sample", type=int, metavar="N", help="N architectures at random")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (default 0)")
    parser.add_argument("--arch", action="append", metavar="NAME",
                        help="only this model type; * and ? match, may be repeated")  # fmt: skip
    parser.add_argument("--library", action="append", choices=LIBRARIES,
                        help="only models of this library")  # fmt: skip
    parser.add_argument("--mode", action="append", choices=("cpu", *MODES),
                        help="only this mode; cpu runs the references alone")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=300, help="seconds a cell may take")
    parser.add_argument("--optimized", action="store_true",
                        help="compile as users do, not as fast as possible")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("runs/models"),
                        help="where models.json and models.md go")  # fmt: skip
    parser.add_argument("--resume", action="store_true",
                        help="keep what --out has already, add what is missing")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the document as JSON")
    return parser.parse_args(given)


def library_of(name: str) -> str:
    return name.partition("/")[0] if "/" in name else "transformers"


def chosen(names: Sequence[str], patterns: Sequence[str] | None, sample: int | None,
           seed: int) -> list[str]:  # fmt: skip
    """The architectures of a run. Raises SystemExit where a pattern matches none."""
    kept = sorted(names)
    if patterns:
        for pattern in patterns:
            if not fnmatch.filter(kept, pattern):
                raise SystemExit(f"no architecture matches {pattern!r}")
        kept = [n for n in kept if any(fnmatch.fnmatchcase(n, p) for p in patterns)]
    if sample is not None and sample < len(kept):
        kept = sorted(random.Random(seed).sample(kept, sample))
    return kept


def stored_results(file: Path) -> list[ModelResult]:
    """What an earlier run left in its results.jsonl; a line cut short at its end is not counted."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(ModelResult.from_json(json.loads(line)))
    return found


def main(given: Sequence[str] | None = None) -> int:
    options = _arguments(given)
    from tests.conformance.models.architectures import all_architectures

    libraries = options.library or LIBRARIES
    candidates = [n for n in all_architectures() if library_of(n) in libraries]
    names = chosen(candidates, options.arch, options.sample, options.seed)
    modes = options.mode or MODES
    file = options.out / "results.jsonl"
    results = stored_results(file) if options.resume else []
    known = {r.cell for r in results}
    cells = [[ModelCell(name, mode) for mode in modes] for name in names]
    work = [left for row in cells if (left := [c for c in row if c not in known])]
    wanted = len(results) + sum(map(len, work))
    log = Console(stderr=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as stored:
        stored.writelines(json.dumps(r.as_json()) + "\n" for r in results)

        def report(result: ModelResult) -> None:
            results.append(result)
            stored.write(json.dumps(result.as_json()) + "\n")
            stored.flush()
            if len(results) % 20 == 0 or log.is_terminal:
                log.print(f"{len(results)}/{wanted} {result.cell.architecture}",
                          highlight=False)  # fmt: skip

        effort = pool.Effort(options.jobs, options.limit, None, options.optimized)
        try:
            pool.run(MODELS, work, effort, report)
        except pool.CannotStart as problem:
            raise SystemExit(str(problem)) from None
    found = Results(results, expected.load())
    found.store(options.out)
    if options.json:
        print(json.dumps(found.as_json(), indent=1))
    found.print(Console(stderr=options.json))
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
