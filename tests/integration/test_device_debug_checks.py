"""What Debug mode finds, with the line: bad indices, NaN, infinity, casts that overflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.runtime import debug
from tpu_perf.runtime.modes import EagerMode, mode_set_to

HERE = r".* at .*test_device_debug_checks\.py:\d+"


@pytest.fixture(autouse=True)
def _debug_mode() -> Iterator[None]:
    with mode_set_to(EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING):
        yield


def _of(*values: Any, dtype: Any = None) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device="tpu")


INDEXED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "embedding": lambda x, i: functional.embedding(i, x),
    "gather": lambda x, i: x.gather(0, i[None]),
    "index_select": lambda x, i: x.index_select(0, i),
    "index.Tensor": lambda x, i: x[i],
    "index_put": lambda x, i: x.__setitem__(i, 0.0),
    "scatter": lambda x, i: x.scatter(0, i[None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[None], torch.ones(1, 2, device="tpu")),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(2, 3, device="tpu")),
    "index_copy": lambda x, i: x.index_copy(0, i, torch.ones(2, 3, device="tpu")),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "take": lambda x, i: x.take(i + 8),
    "put": lambda x, i: x.put(i + 8, torch.ones(2, device="tpu")),
    "nll_loss": lambda x, i: functional.nll_loss(x[:2], i),
}


@pytest.mark.parametrize("op", INDEXED)
def test_an_index_out_of_bounds_is_found(op: str) -> None:
    x = torch.ones(5, 3, device="tpu")
    with pytest.raises(IndexError, match=rf"aten::{op}.*: index (15|7) in .*out of bounds{HERE}"):
        INDEXED[op](x, _of(1, 7))
    assert x.sum().item() == 15


@pytest.mark.parametrize("op", ["embedding", "gather", "index_select", "scatter", "index_add"])
def test_negative_indices_are_out_of_bounds_where_torch_has_none(op: str) -> None:
    x = torch.ones(5, 3, device="tpu")
    with pytest.raises(IndexError, match=f"index -1 in .*out of bounds{HERE}"):
        INDEXED[op](x, _of(1, -1))
    for wrapping in ("index.Tensor", "take", "index_fill"):
        INDEXED[wrapping](x, _of(1, -1))
    assert functional.cross_entropy(x[:2], _of(1, -100)).item() == pytest.approx(1.0986, rel=1e-4)


def test_the_op_that_made_nan_is_found() -> None:
    with pytest.raises(RuntimeError, match=rf"aten::log.*: output 0 has 1 NaN among 2{HERE}"):
        _of(-1.0, 1.0).log()
    with pytest.raises(RuntimeError, match=f"aten::log_.*1 NaN{HERE}"):
        _of(-1.0, 1.0).log_()
    with pytest.raises(RuntimeError, match=f"_softmax.*2 NaN{HERE}"):  # a row masked whole
        torch.full((2,), float("-inf"), device="tpu").softmax(0)
    x = _of(0.0).requires_grad_()
    root = x.sqrt().sum() * 0
    with pytest.raises(RuntimeError, match=f"1 NaN{HERE}, in backward of SqrtBackward0"):
        root.backward()
    assert (_of(float("nan")) + 1).isnan().all()  # it came in: its maker was the one to report


def test_the_op_that_made_infinity_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=f"aten::exp.*1 infinite among 2 values{HERE}"):
        _of(1000.0, 1.0).exp()
    with pytest.raises(RuntimeError, match=f"aten::div.*1 infinite{HERE}"):
        _ = _of(1.0) / _of(0.0)
    with pytest.raises(RuntimeError, match=f"aten::sum.*1 infinite{HERE}"):
        _of(60000, 60000, dtype=torch.float16).sum()
    masked = _of(1.0, 2.0).masked_fill(_of(True, False), float("-inf"))
    assert (masked + 1).softmax(0).tolist() == [0, 1]  # masks are infinite on purpose
    monkeypatch.setattr(debug, "_checks_infinity", False)
    assert _of(0.0).log().isinf().all()


def test_a_cast_that_overflows_is_found() -> None:
    for value, source, target in [
        (300.0, torch.float32, torch.uint8), (-1.0, torch.float32, torch.uint8),
        (1e10, torch.float32, torch.int32), (float("nan"), torch.float32, torch.int64),
        (1e5, torch.float32, torch.float16), (300, torch.int64, torch.int8),
        (2**31, torch.int64, torch.int32), (3e38 * 2, torch.float64, torch.float32),
    ]:  # fmt: skip
        x = _of(value, 1, dtype=source)
        with pytest.raises(OverflowError, match=f"1 of 2 values do not fit into {target}{HERE}"):
            x.to(target)
    with pytest.raises(OverflowError, match=f"aten::copy_.*torch.int8{HERE}"):
        torch.zeros(1, dtype=torch.int8, device="tpu").copy_(_of(500))
    kept = _of(1.5, float("inf"))
    assert kept.half().isinf()[1].item()
    assert _of(3.9, 127.9).to(torch.int8).tolist() == [3, 127]
    assert _of(2**62, 5).to(torch.float32).to(torch.int64).tolist() == [2**62, 5]
    assert kept.bool().tolist() == [True, True]


def test_a_tensor_on_the_wrong_device_is_found_in_every_op_that_takes_two() -> None:
    x, elsewhere = torch.ones(2, 2, device="tpu"), torch.ones(2, 2)
    for op in (torch.add, torch.matmul, functional.linear, torch.minimum, torch.cat):
        arguments: Any = ([x, elsewhere],) if op is torch.cat else (x, elsewhere)
        with pytest.raises(RuntimeError, match=r"same device.*\[2, 2\] on cpu.*\.to\('tpu'\)"):
            op(*arguments)
