"""A fixed part of the operator matrix, for CI; `python -m tests.conformance` is all of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: Ops of every kind: pointwise, reduction, matmul, view, in-place write, data-dependent shape,
#: normalisation, loss, linear algebra, random, factory.
OPS = ("addcmul", "sum", "matmul", "movedim", "index_put", "nonzero", "nn.functional.layer_norm",
       "nn.functional.cross_entropy", "linalg.cholesky", "nn.functional.dropout", "full_like",
       "sort")  # fmt: skip


@pytest.mark.slow
def test_a_fixed_part_of_the_operators_agrees_with_torch(tmp_path: Path) -> None:
    chosen = [argument for op in OPS for argument in ("--op", op)]
    # bool and integers have programs of their own; the other dtypes share float32's.
    dtypes = [a for d in ("float32", "bfloat16", "int64", "bool") for a in ("--dtype", d)]
    run = subprocess.run(
        [sys.executable, "-m", "tests.conformance", *chosen, *dtypes, "--few", "1",
         "--jobs", "1", "--json", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    counts = json.loads(run.stdout)
    assert counts["ops"] == len(OPS)
    assert counts["passed"] > 100
    assert counts["failed"] == counts["xpassed"] == 0
    stored = json.loads((tmp_path / "matrix.json").read_text())
    assert len(stored["matrix"]) == counts["cells"]
    modes = {row["cell"]["mode"] for row in stored["matrix"]}
    assert modes == {"strict", "defer_and_fuse", "compile"}
    assert "| matmul | compile |" in (tmp_path / "matrix.md").read_text()
