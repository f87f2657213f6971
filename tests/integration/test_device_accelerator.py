"""torch.accelerator, streams, events and memory statistics of device "tpu"."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.runtime.modes import EagerMode, mode_set_to

tpu = torch.tpu  # type: ignore[attr-defined]
accelerator: Any = torch.accelerator


def test_every_function_of_torch_accelerator_answers() -> None:
    assert accelerator.is_available()
    assert accelerator.current_accelerator() == torch.device("tpu")
    assert accelerator.device_count() == 1
    assert accelerator.current_device_index() == 0
    accelerator.set_device_index("tpu:0")
    with accelerator.device_index(0):
        accelerator.synchronize()
    accelerator.synchronize("tpu")
    accelerator.empty_cache()
    accelerator.empty_host_cache()
    dtypes = accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64} <= dtypes
    free, total = accelerator.get_memory_info()
    assert 0 < free <= total == tpu.get_device_properties().total_memory
    with pytest.raises(RuntimeError, match="tpu device 1 does not exist"):
        accelerator.set_device_index(1)
    with pytest.raises(RuntimeError, match="not supported on device type: tpu"):
        accelerator.Graph()


def test_memory_statistics_follow_live_tensors() -> None:
    gc.collect()
    before = accelerator.memory_allocated()
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    kept = torch.ones(1000, device="tpu")
    gone = torch.ones(500, device="tpu")
    del gone
    assert accelerator.memory_allocated() - before == tpu.memory_allocated() - before == 4000
    assert accelerator.max_memory_allocated() - before == 6000
    assert accelerator.memory_reserved() == accelerator.memory_allocated()
    assert accelerator.max_memory_reserved() == tpu.max_memory_reserved()
    stats = accelerator.memory_stats()
    assert (stats["allocation.all.allocated"], stats["allocation.all.freed"]) == (2, 1)
    assert stats["allocation.all.current"] == tpu.memory_stats()["allocation.all.current"] > 0
    assert stats["num_ooms"] == 0
    accelerator.reset_peak_memory_stats()
    assert tpu.max_memory_allocated("tpu:0") - before == 4000
    assert "allocated_bytes.all.peak" in tpu.memory_summary()
    assert kept.numel() == 1000


def test_streams_are_current_in_the_thread_that_entered_them() -> None:
    stream, other = torch.Stream(device="tpu"), tpu.Stream()
    assert isinstance(stream, torch.Stream)
    assert stream != other
    default = accelerator.current_stream()
    seen: list[Any] = []
    with stream:
        assert accelerator.current_stream() == tpu.current_stream() == stream
        with tpu.stream(other):
            assert tpu.current_stream() == other
        assert tpu.current_stream() == stream
        thread = threading.Thread(target=lambda: seen.append(tpu.current_stream()))
        thread.start()
        thread.join()
        x = torch.ones(3, device="tpu") + 1
    assert seen == [default] == [tpu.default_stream()]
    other.wait_stream(stream)
    other.wait_event(stream.record_event())
    x.record_stream(other)
    accelerator.set_stream(other)
    assert tpu.current_stream() == other
    accelerator.set_stream(default)
    stream.synchronize()
    assert stream.query()
    with pytest.raises(TypeError, match="expected a stream of device tpu"):
        accelerator.set_stream(torch.Stream(device="cpu"))


@pytest.mark.parametrize("make", [torch.Event, tpu.Event])
def test_events_time_and_wait_for_the_work_before_them(make: Any) -> None:
    start, middle, end = (make(enable_timing=True) for _ in range(3))
    x = torch.randn(300, 300, device="tpu")
    start.record()
    for _ in range(20):
        x = (x @ x).tanh()
    middle.record()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(
        start.elapsed_time(middle) + middle.elapsed_time(end)
    )
    assert start.elapsed_time(middle) > 0
    assert end.query()
    with mode_set_to(EagerMode.DEFER_AND_FUSE):
        made = torch.ones(3, device="tpu") + 1
        event = make()
        event.record()  # what was deferred so far runs
        event.synchronize()
        assert event.query()
        assert made.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        event.elapsed_time(end)
    with pytest.raises(RuntimeError, match="must be recorded"):
        make(enable_timing=True).elapsed_time(end)


def test_other_devices_keep_their_generators_streams_and_events() -> None:
    assert type(torch.Generator()) is torch._C.Generator
    assert torch.Generator("cpu").manual_seed(3).initial_seed() == 3
    assert torch.Stream(device="cpu").device.type == "cpu"
    assert torch.Event("cpu").device.type == "cpu"
    assert not isinstance(torch.ones(1), torch.Generator)
    assert issubclass(tpu.Stream, torch.Stream)
