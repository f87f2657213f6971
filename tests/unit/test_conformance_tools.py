"""The conformance harness itself: it must see what is wrong, and only that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tests.conformance import expected, random_ops
from tests.conformance.agreement import Disagreement, agree
from tests.conformance.cells import Cell, Result, cells_of
from tests.conformance.expected import Expectation, Expectations
from tests.conformance.matrix import Matrix
from tests.conformance.placement import Mover
from tests.conformance.samples import Choice, Sample


def test_agreement_sees_values_strides_dtypes_shapes_and_places() -> None:
    host = torch.arange(6.0).reshape(2, 3)
    agree(host.to("tpu"), host)
    wrong = [
        (host.to("tpu") + 1e-3, "not close"),
        (host.to("tpu").t().contiguous().t(), "strides"),
        (host.to("tpu").to(torch.bfloat16), "dtype"),
        (host.to("tpu")[:1], "shape"),
        (host, "is on cpu"),
    ]
    for got, why in wrong:
        with pytest.raises(Disagreement, match=why):
            agree(got, host)
    with pytest.raises(Disagreement, match="structure"):
        agree((host.to("tpu"),), (host, host))


def test_a_result_no_farther_from_the_truth_than_the_cpu_agrees() -> None:
    truth = torch.tensor([1.0], dtype=torch.float64)
    cpu = torch.tensor([1.001])
    agree(torch.tensor([0.999]).to("tpu"), cpu, lambda: truth)
    with pytest.raises(Disagreement):
        agree(torch.tensor([0.99]).to("tpu"), cpu, lambda: truth)


def test_moved_tensors_keep_strides_offsets_and_shared_storage() -> None:
    base = torch.arange(24.0)
    a, b = base.as_strided((3, 2), (5, 2), 1), base[4:]
    moved_a, moved_b = Mover().move((a, b))
    assert (moved_a.stride(), moved_a.storage_offset()) == ((5, 2), 1)
    moved_b.zero_()
    b.zero_()
    assert torch.equal(moved_a.cpu(), a)
    turned = torch.tensor([1 + 2j]).conj()
    assert Mover().move(turned).is_conj()


def test_a_wrong_distribution_and_a_forgotten_seed_are_seen() -> None:
    sample = Sample(torch.zeros(50), (), {}, lambda x: x, False, False, False, "")

    class Op:
        name = "randn_like"
        inplace_variant = None

        def __call__(self, value: torch.Tensor) -> torch.Tensor:
            return torch.randn_like(value)

    op: Any = Op()
    random_ops.check(op, op, sample)
    with pytest.raises(Disagreement, match="distribution"):
        random_ops.check(lambda v: torch.rand_like(v), op, sample)
    counter = iter(range(1000))
    with pytest.raises(Disagreement, match="one seed"):
        random_ops.check(lambda v: torch.randn_like(v) + next(counter), op, sample)


def _result(status: str, **cell: str) -> Result:
    values = {"op": "add", "dtype": "float32", "mode": "strict", "check": "forward", **cell}
    return Result(Cell(**values), status, 3, int(status == "failed"), "why | sample")


def test_expected_failures_are_strict() -> None:
    listed = Expectations([Expectation("add", "no program", dtypes=("float32",))])
    matrix = Matrix([_result("failed"), _result("passed", dtype="int64")], listed)
    assert (matrix.count("xfailed"), matrix.count("passed"), matrix.problems) == (1, 1, [])
    matrix = Matrix([_result("passed"), _result("failed", dtype="int64")], listed)
    assert [o.kind for o in matrix.problems] == ["xpassed", "failed"]
    # Of a few samples, the failing ones may not be among them.
    assert Matrix([_result("passed")], listed, every_sample=False).problems == []


def test_entries_written_cover_the_failures_and_keep_their_reasons(tmp_path: Path) -> None:
    before = Expectations([Expectation("add", "known", modes=("strict",))])
    results = [
        _result("failed"),
        _result("failed", dtype="int64"),
        _result("failed", mode="compile"),
        _result("passed", dtype="bool"),
        _result("absent", dtype="uint8"),
    ]
    path = tmp_path / "expected.toml"
    expected.write(expected.entries_for(results, before), path)
    after = expected.load(path)
    assert [after.reason(r.cell) for r in results] == ["known", "known", "why", None, None]
    path.write_text('[[expected]]\nop = "add"\nmode = "strict"\nreason = "x"\n')
    with pytest.raises(ValueError, match="mode"):
        expected.load(path)


def test_cells_and_choices() -> None:
    cells = list(cells_of("add"))
    assert len(cells) == len(set(cells))
    assert {c.dtype for c in cells if c.check == "gradient"} == {"float32", "complex64"}
    assert Choice(3).of(range(11)) == [0, 5, 10]
    assert Choice(None).of(range(4)) == [0, 1, 2, 3]
    assert Choice(1).of(range(4)) == [0]
