"""Device "tpu" as a PyTorch device: aliases, writes, autograd, errors, modes, memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tests.integration.comparing import same_on_device
from tpu_perf.recorder import Recorder, record_into
from tpu_perf.runtime.buffers import buffer_of
from tpu_perf.runtime.modes import STATE, EagerMode, mode_set_to

tpu = torch.tpu  # type: ignore[attr-defined]


def _pair(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    host = torch.randn(*shape)
    return host, host.to("tpu")


def test_plain_tensor_not_a_subclass() -> None:
    assert type(torch.ones(2, device="tpu")) is torch.Tensor


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[1:3, ::2],
        lambda x: x[2],
        lambda x: x[:, -1],
        lambda x: x.view(2, 2, 6).permute(2, 0, 1),
        lambda x: x.reshape(24)[5:17].view(3, 4),
        lambda x: x.unfold(1, 3, 2),
        lambda x: x.diagonal(),
        lambda x: x.as_strided((3, 2), (4, 3), 2),
        lambda x: x.unsqueeze(1).expand(4, 3, 6),
        lambda x: x.view(torch.int32),
    ],
)
def test_views_alias_their_base(view: object, mode: EagerMode) -> None:
    host, device = _pair(4, 6)
    ours, theirs = view(device), view(host)  # type: ignore[operator]
    same_on_device(ours, theirs)
    device.mul_(2)
    host.mul_(2)
    same_on_device(ours, theirs)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.t().add_(1),
        lambda x: x[1:3, ::2].fill_(7),
        lambda x: x[2].copy_(torch.arange(6.0)),
        lambda x: x[:, 1].mul_(x[:, 2]),
        lambda x: x[1:].add_(x[:-1].clone()),
        lambda x: x.view(-1)[3:9].zero_(),
        lambda x: x.diagonal().fill_(0),
        lambda x: x.__setitem__((slice(None), 0), 5.0),
        lambda x: x.masked_fill_(x > 0, 0.5),
        lambda x: x.add_(x),
        lambda x: torch.add(x, 1, out=x),
        lambda x: x.view(torch.int32).bitwise_and_(-2),
    ],
)
def test_writes_through_views_reach_the_base(write: object, mode: EagerMode) -> None:
    host, device = _pair(4, 6)
    write(device)  # type: ignore[operator]
    write(host)  # type: ignore[operator]
    same_on_device(device, host)


def test_writes_into_parts_of_unwritten_memory_leave_other_memory_alone(mode: EagerMode) -> None:
    for _ in range(3):
        made = torch.empty(2, 3, device="tpu")
        made[0].copy_(torch.ones(3).to("tpu"))
        made[1].fill_(2)
        made[1].add_(1)
        assert made.tolist() == [[1, 1, 1], [3, 3, 3]]
    assert torch.empty(2, 3, device="tpu").cpu().shape == (2, 3)


def test_out_of_place_result_geometry(mode: EagerMode) -> None:
    host, device = _pair(4, 6)
    same_on_device(device.t() + 1, host.t() + 1)
    same_on_device(device.t().clone(), host.t().clone())
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    same_on_device(images.to("tpu") * 2, images * 2)


@pytest.mark.parametrize("other", [2, 2.5, True, torch.tensor(3), torch.tensor(1.5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_type_promotion(dtype: torch.dtype, other: Any) -> None:
    host = torch.tensor([0, 1, 2]).to(dtype)
    device = host.to("tpu")
    for op in (torch.add, torch.mul, torch.true_divide, torch.eq):
        theirs, ours = op(host, other), op(device, other)
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours.cpu(), theirs)


def test_autograd_through_views_and_in_place(mode: EagerMode) -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[1:] += x[:-1] ** 2
        y.t().relu_()
        return (y.exp() / 10).sum()

    host = torch.randn(4, 4, requires_grad=True)
    device = host.detach().to("tpu").requires_grad_()
    work(host).backward()
    work(device).backward()
    assert device.grad is not None
    torch.testing.assert_close(device.grad.cpu(), host.grad)


def test_device_mixing_is_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="tpu") + torch.ones(3)
    assert (torch.ones(3, device="tpu") + torch.tensor(2.0)).cpu().tolist() == [3.0] * 3


def test_shape_errors_are_torchs() -> None:
    a, b = torch.ones(3, device="tpu"), torch.ones(4, device="tpu")
    with pytest.raises(RuntimeError, match=r"broadcast|must match"):
        _ = a + b
    with pytest.raises(IndexError, match="Dimension out of range"):
        a.sum(5)


def test_unsupported_op_names_itself_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(4, 4, device="tpu")
    with pytest.raises(NotImplementedError) as raised:
        torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)
    text = str(raised.value)
    assert "aten::fake_quantize_per_tensor_affine" in text
    assert "[4, 4]" in text
    assert "TORCH_TPU_CPU_FALLBACK=1" in text
    monkeypatch.setattr(STATE, "cpu_fallback", True)
    recorder = Recorder()
    with record_into(recorder):
        ours = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)
    wanted = torch.fake_quantize_per_tensor_affine(x.cpu(), 0.1, 0, 0, 255)
    torch.testing.assert_close(ours.cpu(), wanted)
    table = recorder.drain()["fallback"].to_pydict()
    assert [op for op in table["op"] if "fake_quantize" in op]


def test_debug_mode_reports_the_users_line() -> None:
    with mode_set_to(EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING):
        table = torch.randn(5, 2, device="tpu")
        with pytest.raises(IndexError, match=r"embedding.*index 7 .*test_runtime_device\.py:\d+"):
            torch.nn.functional.embedding(torch.tensor([1, 7], device="tpu"), table)
        with pytest.raises(RuntimeError, match=r"log.*NaN.*test_runtime_device\.py:\d+"):
            torch.log(torch.tensor([-1.0, 1.0], device="tpu"))


def test_memory_is_counted_from_lifetimes(mode: EagerMode) -> None:
    gc.collect()
    torch.cuda.is_available()
    before = tpu.memory_allocated()
    tpu.reset_peak_memory_stats()
    kept = torch.randn(1000, device="tpu")
    tpu.synchronize()
    assert tpu.memory_allocated() - before == 4000
    made = kept * 2
    tpu.synchronize()
    assert tpu.memory_allocated() - before == 8000
    del made
    assert tpu.memory_allocated() - before == 4000
    assert tpu.max_memory_allocated() - before >= 8000


def test_deferred_dead_values_are_not_produced() -> None:
    with mode_set_to(EagerMode.DEFER_AND_FUSE):
        x = torch.ones(1000, device="tpu")
        tpu.synchronize()
        before = tpu.memory_stats()["allocation.all.allocated"]
        y = ((x + 1) * 2).exp().sum()
        tpu.synchronize()
        assert tpu.memory_stats()["allocation.all.allocated"] - before == 1
        assert y.item() == pytest.approx(1000 * 54.598, rel=1e-4)


def test_written_tensors_keep_their_memory(mode: EagerMode) -> None:
    tensors = [torch.full((64, 64), float(i)).to("tpu") for i in range(4)]

    def addresses() -> list[int]:
        torch.tpu.synchronize()  # type: ignore[attr-defined]
        return [buffer_of(t).ready().unsafe_buffer_pointer() for t in tensors]

    for t in tensors:
        t.add_(1)  # the first write may copy: uploads share memory with the host
    before = addresses()
    tensors[2].add_(tensors[0])
    tensors[0].mul_(2)
    gone = tensors[3] * 3
    gone.add_(1)
    del gone
    tensors[1].sub_(tensors[2])
    tensors[3].add_(5)
    assert addresses() == before
    assert [float(t[0, 0]) for t in tensors] == [2.0, -2.0, 4.0, 9.0]


def test_flush_reasons_have_torchtpus_names() -> None:
    recorder = Recorder()
    with mode_set_to(EagerMode.DEFER_AND_FUSE), record_into(recorder):
        x = torch.ones(3, device="tpu") + 1
        x.cpu()
        (x + 1).sum().item()
        x.mul_(2)
        tpu.synchronize()
    assert recorder.drain()["flush"].to_pydict()["reason"] == [".cpu()", "item()", "synchronize()"]


def test_threads_defer_in_segments_of_their_own() -> None:
    failures: list[str] = []

    def work(number: int) -> None:
        x = torch.full((8,), float(number), device="tpu")
        for i in range(50):
            x = x * 1.0 + 1.0
            if i % 17 == 0:
                x.cpu()
        if not torch.equal(x.cpu(), torch.full((8,), number + 50.0)):
            failures.append(f"thread {number}: {x.cpu()}")

    with mode_set_to(EagerMode.DEFER_AND_FUSE):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_a_value_pending_in_another_thread_is_run_first() -> None:
    with mode_set_to(EagerMode.DEFER_AND_FUSE):
        made: list[torch.Tensor] = []

        def work() -> None:
            made.append(torch.ones(4, device="tpu") + 1)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert (made[0] * 3).cpu().tolist() == [6.0] * 4


def test_random_numbers_are_the_same_in_every_mode() -> None:
    drawn = []
    for each in EagerMode:
        with mode_set_to(each):
            torch.manual_seed(11)
            parts = [torch.rand(5, device="tpu"), torch.randn(5, device="tpu")]
            parts.append(torch.nn.functional.dropout(torch.ones(50, device="tpu"), 0.3))
            drawn.append(torch.cat([p.cpu() for p in parts]))
    state = tpu.get_rng_state()
    again = torch.rand(5, device="tpu").cpu()
    tpu.set_rng_state(state)
    assert torch.equal(torch.rand(5, device="tpu").cpu(), again)
    for other in drawn[1:]:
        assert torch.equal(drawn[0], other)


def test_public_names_of_torchtpu() -> None:
    names: list[str] = [
        "EagerMode",
        "eager_mode",
        "set_eager_mode",
        "synchronize",
        "Event",
        "Stream",
        "stream",
        "current_stream",
        "default_stream",
        "set_stream",
        "current_device",
        "device",
        "device_count",
        "device_of",
        "set_device",
        "get_device_name",
        "get_device_properties",
        "get_amp_supported_dtype",
        "manual_seed",
        "manual_seed_all",
        "initial_seed",
        "default_generators",
        "get_rng_state",
        "set_rng_state",
        "is_available",
        "is_initialized",
        "memory_allocated",
        "max_memory_allocated",
        "memory_stats",
        "reset_peak_memory_stats",
        "_get_cache_stats",
        "_clear_cache",
        "_set_allow_cache",
        "_set_cache_only",
    ]
    assert [n for n in names if not hasattr(tpu, n)] == []
    seen = [tpu.eager_mode]
    with tpu.set_eager_mode(EagerMode.DEFER_AND_FUSE):
        seen.append(tpu.eager_mode)
    seen.append(tpu.eager_mode)
    strict, fused = EagerMode.DEFER_NEVER, EagerMode.DEFER_AND_FUSE
    assert seen == [strict, fused, strict]
    start, end = tpu.Event(enable_timing=True), tpu.Event(enable_timing=True)
    start.record()
    torch.ones(4, device="tpu").sum()
    end.record()
    assert start.elapsed_time(end) > 0


@pytest.mark.parametrize(
    ("variables", "mode"),
    [
        ({"TPU_DEFER_AND_FUSE": "1"}, "DEFER_AND_FUSE"),
        ({"TORCH_TPU_DEFER_AND_FUSE": "1"}, "DEFER_AND_FUSE"),
        ({"TORCH_TPU_LAUNCH_BLOCKING": "1", "TPU_DEFER_AND_FUSE": "1"},
         "DEFER_NEVER_AND_LAUNCH_BLOCKING"),
        ({"TPU_DEFER_AND_FUSE": "1", "TORCH_TPU_DEFER_AND_FUSE": "0"}, "DEFER_NEVER"),
    ],
)  # fmt: skip
def test_modes_from_the_environment(variables: dict[str, str], mode: str) -> None:
    code = "import tpu_perf.runtime.device, torch; print(torch.tpu.eager_mode.name)"
    found = _python(code, variables)
    assert found.stdout.strip() == mode, found.stderr


def test_another_privateuse1_backend_is_a_clear_error() -> None:
    code = (
        "import torch\n"
        "torch.utils.rename_privateuse1_backend('npu')\n"
        "import tpu_perf.runtime.device\n"
    )
    found = _python(code, {"TPU_PERF_AUTOLOAD": "0"})  # else "tpu" has the name already
    assert "already loaded as device 'npu'" in found.stderr
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in found.stderr


def _python(code: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_printing_reads_a_tensor_once() -> None:
    wanted = torch.arange(30.0).view(5, 6).sin()
    tensor = wanted.to("tpu")
    recorder = Recorder()
    with record_into(recorder):
        text = repr(tensor)
    assert "".join(text.split()) == "".join(repr(wanted).split())[:-1] + ",device='tpu:0')"
    tables = recorder.drain()
    assert tables["dispatch"].num_rows == 0
    assert tables["transfer"].num_rows == 1
