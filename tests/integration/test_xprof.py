"""An exported run in the real XProf: every tool shows the run's own numbers."""

from __future__ import annotations

import gzip
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest

from tests.stored_captures import (
    DEVICE_NS_PER_STEP,
    DOT_FLOPS,
    DOT_READ,
    DOT_WRITTEN,
    FUSION_FLOPS,
    write_capture,
)
from tpu_perf.export.runs.xprof import write
from tpu_perf.record.store import load_run

pytest.importorskip("xprof")
GIB = 2**30
MODULE = "jit_two_matmuls"
PROBE_STEPS = 2
FACTS_PEAK = 100e9


@cache
def hlo_with_buffers() -> bytes:
    """An HloProto with its buffer assignment, of a matmul that XLA compiles for the CPU here."""
    import tempfile

    import jax
    import jax.numpy as jnp

    def two_matmuls(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w) @ w

    with tempfile.TemporaryDirectory() as directory:
        x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        cpu = jax.devices("cpu")[0]
        with jax.default_device(cpu):
            jax.jit(two_matmuls).lower(x, x).compile(
                {"xla_dump_to": directory, "xla_dump_hlo_as_proto": True}
            )
        (dumped,) = Path(directory).glob("*after_optimizations.hlo.pb")
        return dumped.read_bytes()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a run with device events on a TPU v6e, whose bandwidth the chip table knows."""
    directory = tmp_path_factory.mktemp("xprof")
    run = write_capture(directory / "strict", hlo=hlo_with_buffers(), device_kind="TPU v6 lite")
    (file,) = write(load_run(run), directory / "log").files
    return file


@pytest.fixture(scope="module")
def derived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a CPU run without device events."""
    directory = tmp_path_factory.mktemp("derived")
    run = write_capture(directory / "strict", device_events=False)
    (file,) = write(load_run(run), directory / "log").files
    return file


def tool(file: Path, name: str, **params: Any) -> Any:
    """A tool's data as XProf's server sends it."""
    from xprof.convert import raw_to_tool_data

    names = raw_to_tool_data.xspace_to_tool_names([str(file)])
    assert name in names or name == "trace_viewer", names
    data, _ = raw_to_tool_data.xspace_to_tool_data([str(file)], name, params)
    assert data, f"{name} is empty"
    text = data.decode() if isinstance(data, bytes) else data
    return json.loads(text) if text.lstrip().startswith(("{", "[")) else text


def rows(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of a chart table as dictionaries by column id."""
    names = [column["id"] for column in table["cols"]]
    return [
        dict(zip(names, (cell["v"] for cell in row["c"]), strict=True)) for row in table["rows"]
    ]


def test_overview_page(exported: Path) -> None:
    page = tool(exported, "overview_page")
    figures = {name: value for table in page for name, value in table.get("p", {}).items()}
    assert float(figures["steptime_ms_average"]) == 100.0
    assert float(figures["tc_compute_ms_average"]) == DEVICE_NS_PER_STEP / 1e6
    assert figures["device_type"] == "TPU v6 lite"
    # MFU: 1e9 FLOP in 0.1 s at 100 GFLOP/s. HBM: 6 GB + 1 GB a step in 0.1 s at 1640 GB/s.
    assert figures["mxu_utilization_percent"] == "10.0%"
    assert float(figures["hbm_utilization_percent"].rstrip("%")) == pytest.approx(
        7e9 / 0.1 / 1640e9 * 100, abs=0.05
    )
    by_name = {row["operation"]: row for row in rows(page[0])}
    matmul = by_name["blocks/0/linear/aten::mm"]
    assert matmul["flopRate"] == pytest.approx(DOT_FLOPS / 20e-3 / 1e9)
    assert matmul["selfTimePercent"] == pytest.approx(20 / 45)


def test_input_pipeline(exported: Path) -> None:
    steps = rows(tool(exported, "input_pipeline_analyzer")[1])
    assert [row["tcComputeTimeMs"] for row in steps] == [45.0] * PROBE_STEPS
    assert [row["tcIdleTimeMs"] for row in steps] == [55.0] * PROBE_STEPS
    assert [row["tcInfeedTimeMs"] for row in steps] == [0.0] * PROBE_STEPS


def test_op_profile(exported: Path) -> None:
    programs = tool(exported, "op_profile")["byProgram"]
    assert programs["metrics"]["rawFlops"] == PROBE_STEPS * (DOT_FLOPS + FUSION_FLOPS)
    categories = {
        category["name"]: category["metrics"]
        for program in programs["children"]
        for category in program["children"]
    }
    assert set(categories) == {"matmul", "elementwise fusion"}
    matmul = categories["matmul"]
    assert matmul["rawTime"] == PROBE_STEPS * 20e9  # ps
    assert matmul["rawBytesAccessedArray"][0] == pytest.approx(
        PROBE_STEPS * (DOT_READ + DOT_WRITTEN)
    )
    assert matmul["uncappedFlops"] > 0  # the peaks were read


def test_hlo_stats(exported: Path) -> None:
    found = {row["hlo_op_name"]: row for row in rows(tool(exported, "hlo_stats"))}
    assert set(found) == {"dot.1", "fusion.2", "fusion.7"}
    dot = found["dot.1"]
    assert dot["occurrences"] == PROBE_STEPS
    assert dot["total_self_time"] == PROBE_STEPS * 20_000  # us
    assert dot["category"] == "matmul"
    assert dot["model_flop_rate"] == pytest.approx(50.0)
    assert dot["hbm_bw"] == pytest.approx((DOT_READ + DOT_WRITTEN) / 20e-3 / GIB)
    assert dot["tf_op_name"] == "blocks/0/linear/aten::mm"
    assert "model.py:10" in dot["source_info"]
    assert dot["hlo_op_expression"].startswith("%dot.1 = f32[64,64]")
    assert found["fusion.7"]["model_flop_rate"] == 0  # not known, and the notes say so


def test_framework_op_stats(exported: Path) -> None:
    table = rows(tool(exported, "framework_op_stats")[0])
    device = {row["operation"]: row for row in table if row["host_or_device"] == "Device"}
    assert device["blocks/0/aten::gelu"]["total_self_time"] == PROBE_STEPS * 10_000
    assert device["aten::_foreach_add_"]["total_self_time"] == PROBE_STEPS * 15_000
    host = {row["operation"]: row for row in table if row["host_or_device"] == "Host"}
    assert host["blocks/0/linear/aten::mm"]["total_self_time"] == 7 * 2_000  # seven steps


def test_roofline(exported: Path) -> None:
    model = tool(exported, "roofline_model")
    device = next(table for table in model if "peak_hbm_bw" in table.get("p", {}))
    assert float(device["p"]["peak_flop_rate"]) == FACTS_PEAK / 1e9
    assert float(device["p"]["peak_hbm_bw"]) == pytest.approx(1640e9 / GIB, rel=1e-3)
    by_name = {row["operation"]: row for row in rows(device) if row["step"] == "Total"}
    assert by_name["dot.1"]["measured_flop_rate"] == pytest.approx(50.0)
    assert by_name["dot.1"]["roofline_efficiency"] == pytest.approx(0.5)
    whole = PROBE_STEPS * (DOT_FLOPS + FUSION_FLOPS)
    window = by_name["Program"]["total_time"] * 1e-6
    assert by_name["Program"]["measured_flop_rate"] == pytest.approx(whole / window / 1e9)


def test_memory_profile(exported: Path) -> None:
    profile = tool(exported, "memory_profile")["memoryProfilePerAllocator"]["device 0"]
    assert int(profile["profileSummary"]["peakBytesUsageLifetime"]) == 3_000_000
    assert int(profile["profileSummary"]["memoryCapacity"]) == 32 * GIB
    parameter = next(
        shot["activityMetadata"]
        for shot in profile["memoryProfileSnapshots"]
        if shot["activityMetadata"]["address"] == "1"
    )
    assert parameter["regionType"] == "parameter"
    assert int(parameter["allocationBytes"]) == 2_000_000


def test_hlo_tools(exported: Path) -> None:
    module = f"{MODULE}(1)"
    viewer = tool(exported, "memory_viewer", module_name=module, program_id="1", memory_space="0")
    assert viewer["peakHeapMib"] > 0 or viewer["totalBufferAllocationMib"] > 0
    options = {"module_name": module, "type": "short_txt", "program_id": "1"}
    text = tool(exported, "graph_viewer", graph_viewer_options=options)
    assert "HloModule" in text
    assert "f32[64,64]" in text


def test_trace_viewer(exported: Path) -> None:
    events = tool(exported, "trace_viewer")["traceEvents"]
    slices = [event for event in events if event.get("ph") == "X"]
    names = {event["name"] for event in slices}
    assert {"dot.1", "aten::mm", "blocks.0", "transfer h2d", "sync item()", "fence"} <= names
    calls = [event for event in slices if event["name"] == "DoEnqueueProgram"]
    modules = [event for event in slices if event["name"] == f"{MODULE}(1)"]
    assert {module["args"]["run_id"] for module in modules} <= {
        call["args"]["run_id"] for call in calls
    }
    assert len(modules) == PROBE_STEPS
    mm = next(event for event in slices if event["name"] == "aten::mm")
    assert mm["args"]["source"] == "model.py:10"
    assert mm["args"]["module"] == "blocks.0.linear"


def test_planes_by_another_reader(exported: Path) -> None:
    from xprof.profile_data import ProfileData

    lines = {
        (plane.name, line.name): list(line.events)
        for plane in ProfileData.from_file(str(exported)).planes
        for line in plane.lines
    }
    ops = lines["/device:TPU:0", "XLA Ops"]
    assert sum(op.duration_ns for op in ops) == PROBE_STEPS * DEVICE_NS_PER_STEP
    steps = lines["/device:TPU:0", "Steps"]
    assert [step.duration_ns for step in steps] == [100e6] * PROBE_STEPS
    first = min(event.start_ns for event in ops)
    assert first - steps[0].start_ns == 10e6  # dot.1 starts 10 ms into its step
    host = lines["/host:CPU", "main thread"]
    trains = [event for event in host if event.name == "train"]
    assert len(trains) == 5  # three timed and two probe steps; first and warm-up are not marked
    assert sum(event.name == "aten::mm" for event in host) == 7  # but their events are there
    assert len(lines["/host:CPU", "device memory"]) == 1 + 2 * 7


def test_derived_spans_are_called_so(derived: Path) -> None:
    figures = {
        name: value
        for table in tool(derived, "overview_page")
        for name, value in table.get("p", {}).items()
    }
    assert float(figures["steptime_ms_average"]) == 100.0
    assert float(figures["tc_compute_ms_average"]) == 2.0  # two calls of 1 ms each
    assert figures["device_type"] == "cpu through XLA, Test CPU (not a TPU)"
    found = {row["hlo_op_name"]: row for row in rows(tool(derived, "hlo_stats"))}
    assert found["forward_backward"]["category"] == "whole program"
    assert found["forward_backward"]["occurrences"] == 7
    threads = [
        event["args"]["name"]
        for event in tool(derived, "trace_viewer")["traceEvents"]
        if event.get("name") == "thread_name"
    ]
    assert "XLA Ops (derived from execute events)" in threads


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_server_starts_and_ends(tmp_path: Path, ending: signal.Signals) -> None:
    run = write_capture(tmp_path / "strict")
    command = [sys.executable, "-m", "tpu_perf", "xprof", str(run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("XProf at"))
        url = line.split()[2]
        opener = build_opener(ProxyHandler({}))
        answer = opener.open(f"{url}data/plugin/profile/runs", timeout=30).read()
        runs = json.loads(gzip.decompress(answer))
        assert [name.startswith("strict-") for name in runs] == [True]
        process.send_signal(ending)
        assert process.wait(30) == 0
        with pytest.raises(OSError, match="refused"):  # the server itself is gone, too
            opener.open(url, timeout=5)
    finally:
        process.terminate()  # not kill: it has a server to end
        process.wait(30)


def test_busy_port(tmp_path: Path) -> None:
    run = write_capture(tmp_path / "strict")
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = subprocess.run(
            [sys.executable, "-m", "tpu_perf", "xprof", str(run), "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert result.returncode == 4
    assert f"port {port} cannot be used" in result.stderr
    assert "--port" in result.stderr
    assert not (run / "exports").exists()
