"""torch.profiler with ProfilerActivity.PrivateUse1 sees programs and device instructions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from tpu_perf.recorder import active

ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def step() -> None:
    x = torch.ones(32, 32, device="tpu", requires_grad=True)
    (x @ x).relu().sum().backward()


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    step()
    with profile(activities=ACTIVITIES) as profiler:
        step()
        step()
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    profiler.export_chrome_trace(str(path))
    return profiler, json.loads(path.read_text())


def test_ops_and_device_events_are_among_the_events(profiled: Any) -> None:
    profiler, _ = profiled
    events = profiler.events()
    ops = [e for e in events if e.name == "aten::mm"]
    device = [e for e in events if e.name.startswith("aten::mm") and ": " in e.name]
    assert len(ops) >= 2
    assert device
    assert all(e.device_time_total > 0 for e in device)


def test_device_time_is_in_the_table(profiled: Any) -> None:
    profiler, _ = profiled
    averages = {row.key: row for row in profiler.key_averages()}
    rows = [row for key, row in averages.items() if key.startswith("aten::mm") and ": " in key]
    assert sum(row.self_device_time_total for row in rows) > 0


def test_the_chrome_trace_has_a_process_for_the_device_on_the_same_clock(profiled: Any) -> None:
    _, document = profiled
    events = document["traceEvents"]
    host = [e for e in events if e.get("cat") == "cpu_op"]
    device = [e for e in events if e.get("cat") == "kernel"]
    runtime = [e for e in events if e.get("cat") == "privateuse1_runtime"]
    assert {e["pid"] for e in device} == {"tpu:0"}
    assert {e["args"]["program"] for e in device} >= {"aten::relu.default"}
    assert any(e["name"].startswith("execute aten::relu") for e in runtime)
    first, last = min(e["ts"] for e in host), max(e["ts"] + e["dur"] for e in host)
    # Programs run asynchronously: within the profile, and not before their op was called.
    assert all(e["ts"] >= first for e in device)
    assert all(e["ts"] <= last + 1e6 for e in device)


def test_a_compressed_trace(tmp_path: Path) -> None:
    with profile(activities=ACTIVITIES) as profiler:
        step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json.gz"))
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        assert any(e.get("cat") == "kernel" for e in json.load(file)["traceEvents"])


def test_a_schedule_gives_the_last_cycle(tmp_path: Path) -> None:
    traces: list[Path] = []

    def ready(profiler: Any) -> None:
        path = tmp_path / f"{len(traces)}.json"
        profiler.export_chrome_trace(str(path))
        traces.append(path)

    with profile(
        activities=ACTIVITIES,
        schedule=schedule(wait=1, warmup=1, active=1, repeat=2),
        on_trace_ready=ready,
    ) as profiler:
        for _ in range(6):
            step()
            profiler.step()
    counts = []
    for path in traces:
        events = json.loads(path.read_text())["traceEvents"]
        names = [e["name"] for e in events if e.get("cat") == "privateuse1_runtime"]
        counts.append(names.count("execute aten::relu.default"))
    assert counts == [1, 1]


def test_a_profile_of_the_cpu_alone_is_as_torch_makes_it() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    assert not [e for e in profiler.events() if e.use_device == "tpu" and ": " in e.name]
    assert active.recorder is None
