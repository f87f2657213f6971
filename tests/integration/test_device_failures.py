"""Programs that fail on device "tpu": errors name op and line, and no value is made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.runtime import program_cache
from tpu_perf.runtime.modes import EagerMode, mode_set_to

tpu = torch.tpu  # type: ignore[attr-defined]

#: More elements than any machine can address.
TOO_MANY = 10**15
HERE = r"at .*test_device_failures\.py:\d+"


def test_running_out_of_memory_names_the_op_and_the_line() -> None:
    before = torch.accelerator.memory_stats()["num_ooms"]
    x = torch.ones(1, device="tpu")
    uses: list[Callable[[], Any]] = [
        lambda: torch.ones(TOO_MANY, device="tpu"),
        lambda: x.expand(TOO_MANY) * 2,
        torch.compile(lambda: torch.ones(TOO_MANY, device="tpu") * x, backend="tpu"),
    ]
    for use in uses:
        with pytest.raises(torch.OutOfMemoryError, match=rf"out of memory: .* needs .* TiB {HERE}"):
            use()
    assert torch.accelerator.memory_stats()["num_ooms"] == before + 3
    assert (x + 1).tolist() == [2]


def test_a_product_that_xla_would_refuse_only_later_is_refused_at_its_line() -> None:
    column = torch.ones(20_000_000, 1, device="tpu")
    with pytest.raises(torch.OutOfMemoryError, match=rf"aten::mm.* needs 1455 TiB {HERE}"):
        column @ column.t()


def test_what_fails_later_is_told_at_the_next_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_cache, "large_bytes", lambda: 1 << 80)
    column = torch.ones(20_000_001, 1, device="tpu")
    product = column @ column.t()
    with pytest.raises(torch.OutOfMemoryError, match="started earlier: TPU_LAUNCH_BLOCKING=1"):
        tpu.synchronize()
    with pytest.raises(torch.OutOfMemoryError, match="started earlier: TPU_LAUNCH_BLOCKING=1"):
        product[0, 0].item()
    del product
    tpu.synchronize()
    assert (column[:2] + 1).sum().item() == 4


def test_results_of_a_failed_segment_say_so_whenever_they_are_used() -> None:
    with mode_set_to(EagerMode.DEFER_AND_FUSE):
        good = torch.ones(3, device="tpu") + 1
        tpu.synchronize()
        huge = good[:1].expand(TOO_MANY) * 2
        after = huge[:2] + good[:2]
        with pytest.raises(torch.OutOfMemoryError, match=rf"made by aten::mul\.Tensor {HERE}"):
            tpu.synchronize()
        never = r"never computed: .*out of memory"
        with pytest.raises(torch.OutOfMemoryError, match=never):
            after.tolist()
        with pytest.raises(torch.OutOfMemoryError, match=never):
            _ = after + 1
        with pytest.raises(torch.OutOfMemoryError, match=never):
            after.add_(1)
        del huge, after
        tpu.synchronize()
        assert (good * 2).tolist() == [4, 4, 4]
        assert torch.full((2,), 3.0, device="tpu").tolist() == [3, 3]


@pytest.mark.parametrize(
    ("attempt", "way_out"),
    [
        (lambda x: x.to_sparse(), "Keep the tensor dense"),
        (lambda x: x.cpu().to_sparse().to("tpu"), "Keep the tensor dense"),
        (lambda x: x.cpu().to_sparse_csr().to("tpu") @ x, "Keep the tensor dense"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), "Keep integers and scales"),
        (lambda x: x.to_mkldnn(), "Leave the tensor strided"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # torch's own, of sparse and quantised tensors
def test_layouts_that_xla_lacks_say_what_to_do(
    attempt: Callable[[torch.Tensor], object], way_out: str
) -> None:
    with pytest.raises(NotImplementedError, match=way_out) as raised:
        attempt(torch.eye(3, device="tpu"))
    assert "test_device_failures.py:" in str(raised.value)
