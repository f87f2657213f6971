"""TORCH_TRACE logs that torch itself wrote while it compiled, and one in TorchTPU's eager form."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stored_ladders import plan
from tpu_perf.analysis.run_analysis import analyse
from tpu_perf.errors import ImportProblem
from tpu_perf.importers import torch_trace
from tpu_perf.importers.interface import Imported
from tpu_perf.record.events import Tier
from tpu_perf.record.run import Run
from tpu_perf.record.store import RunWriter, StoredRun, load_run

JOB = """
import torch

def scaled(x, w):
    return torch.nn.functional.gelu(x @ w).sum()

compiled = torch.compile(scaled, backend="aot_eager", dynamic=False)
w = torch.ones(4, 4, requires_grad=True)
for rows in (2, 2, 3):
    compiled(torch.ones(rows, 4), w).backward()
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that TORCH_TRACE named, with the job beside it."""
    directory = tmp_path_factory.mktemp("trace")
    job = directory / "job.py"
    job.write_text(JOB, encoding="utf-8")
    environment = os.environ | {"TORCH_TRACE": str(directory / "logs")}
    subprocess.run(
        [sys.executable, str(job)], check=True, capture_output=True, timeout=120, env=environment
    )
    return directory / "logs"


def imported(path: Path, directory: Path) -> tuple[Imported, StoredRun]:
    assert torch_trace.recognises(path)
    writer = RunWriter(directory)
    found = torch_trace.read(path, writer)
    writer.finish(Run(plan=plan("imported", engine="import"), environment=None, status="ok"))
    return found, load_run(directory)


def log_of(directory: Path) -> Path:
    (log,) = directory.iterdir()
    return log


def headers(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if not line.startswith("\t")]


def test_compilations_are_those_of_the_job(traced: Path, tmp_path: Path) -> None:
    """Two shapes of x, forward and backward: the second for its size, at the function's line."""
    found, run = imported(traced, tmp_path / "run")
    compiles = run.events("compile")
    assert len(compiles) == 4
    assert found.counts["compilations (compilation_metrics)"] == 2
    sources = compiles["source"].astype(str)
    first, again = compiles[sources.str.endswith("job.py:4")].to_dict("records")
    assert first["differed"] == ""
    assert "expected 2, actual 3" in again["differed"]
    assert all(compiles["t_end_ns"] > compiles["t_start_ns"])
    assert all(compiles["trace_ns"] + compiles["backend_ns"] > 0)
    assert set(compiles["tier"]) == {Tier.COMPILED}
    assert found.versions["torch"].startswith("2.")


def test_nothing_is_dropped(traced: Path, tmp_path: Path) -> None:
    """Every record of the log is counted; those without a table are annotations."""
    found, run = imported(traced, tmp_path / "run")
    assert sum(found.counts.values()) == len(headers(log_of(traced)))
    kinds = set(run.events("annotation")["kind"].astype(str))
    assert {"aot_forward_graph", "dynamo_output_graph", "dynamo_timed"} <= kinds
    ended = run.events("annotation")
    assert (ended["t_end_ns"] >= ended["t_start_ns"]).all()
    # Records have neither a year nor a zone: they must still lie beside the events that do.
    compiles = run.events("compile")
    minute = 60 * 10**9
    assert ended["t_start_ns"].min() > compiles["t_start_ns"].min() - minute
    assert ended["t_end_ns"].max() < compiles["t_end_ns"].max() + minute


def test_recompiles_are_analysed(traced: Path, tmp_path: Path) -> None:
    _, run = imported(traced, tmp_path / "run")
    found = analyse(run, "op", "causal")
    (again,) = (row for row in found.recompiles if row.differed)
    assert again.line.endswith("job.py:4")
    assert again.count == 1
    assert any("marks no steps" in warning for warning in found.warnings)
    assert found.step["hardware_flops"].value is None


def test_damage_is_told_with_its_line(traced: Path, tmp_path: Path) -> None:
    lines = log_of(traced).read_text(encoding="utf-8").splitlines(keepends=True)
    payload = max(number for number, line in enumerate(lines) if line.startswith("\t"))
    header = max(n for n, line in enumerate(lines[:payload]) if not line.startswith("\t"))
    changed = [*lines[:payload], "\tanother payload\n", *lines[payload + 1 :]]
    broken = {
        "payload": ("".join(changed), f"line {header + 1}"),
        "cut": ("".join(lines)[: sum(map(len, lines[:payload])) + 1], f"line {header + 1}"),
        "header": ("what is this\n" + "".join(lines), r"line 1: not a line of a structured"),
        "json": (lines[0].replace("}", "", 1), "line 1: the file is cut off there"),
    }
    for name, (text, said) in broken.items():
        log = tmp_path / f"{name}.log"
        log.write_text(text, encoding="utf-8")
        with pytest.raises(ImportProblem, match=said) as caught:
            torch_trace.read(log, RunWriter(tmp_path / f"run-{name}"))
        assert f"{name}.log" in str(caught.value)


def test_logs_of_several_processes_are_not_mixed(traced: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank_{rank}.log").write_bytes(log_of(traced).read_bytes())
    with pytest.raises(ImportProblem, match="2 logs, one a process") as caught:
        torch_trace.read(tmp_path, RunWriter(tmp_path / "run"))
    assert "rank_1.log" in str(caught.value)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert not torch_trace.recognises(empty)


STABLEHLO = """module @jit_add {
  func.func public @main(%arg0: tensor<4x8xf32>, %arg1: tensor<8xbf16>) -> (tensor<4x8xf32>) {
    return %arg0 : tensor<4x8xf32>
  }
}"""
GRAPH = """%0: f32[4, 8] = input
%1: bf16[8] = input
%2: f32[4, 8] = aten::add.Tensor(%0, %1)    # /home/me/model.py:17 in forward
%3: f32[4, 8] = aten::relu(%2)    # /home/me/model.py:18 in forward"""


def record(time: int, metadata: dict[str, Any], payload: str | None = None) -> str:
    """A record as torch's formatter writes it."""
    if payload is not None:
        digest = hashlib.md5(payload.encode(), usedforsecurity=False).hexdigest()
        metadata = metadata | {"has_payload": digest}
    head = f"V1203 01:23:{time:02}.000000 77 torch_tpu/eager.py:9] {json.dumps(metadata)}\n"
    below = "" if payload is None else "".join(f"\t{line}\n" for line in payload.split("\n"))
    return head + below


def batch(time: int, hit: bool, reason: str) -> str:
    event = {"name": "torchtpu_eager/aten::add", "cat": "torchtpu_eager", "ph": "X",
             "ts": 1_764_725_000_000_000 + time * 1000, "dur": 500, "pid": 77, "tid": 0,
             "args": {"cache_hit": hit, "reason": reason}}  # fmt: skip
    return record(time, {"chromium_event": {}}, json.dumps(event))


def artifact(time: int, name: str, text: str) -> str:
    metadata = {"artifact": {"name": name, "op_name": "torchtpu_eager/aten::add"}}
    return record(time, metadata, text)


def test_batches_of_torchtpus_eager_modes(tmp_path: Path) -> None:
    """A miss with its graph and program, then a hit of the same."""
    log = tmp_path / "eager.log"
    log.write_text(
        batch(1, False, "item()")
        + artifact(1, "torchtpu_eager_aten_graph", GRAPH)
        + artifact(1, "torchtpu_eager_stablehlo", STABLEHLO)
        + batch(2, True, "synchronize()"),
        encoding="utf-8",
    )
    found, run = imported(log, tmp_path / "run")
    assert found.source.startswith("TORCH_TRACE log of TorchTPU eager")
    flushes = run.events("flush")
    assert flushes["reason"].astype(str).tolist() == ["item()", "synchronize()"]
    assert flushes["program"].tolist() == [0, 0]
    assert run.events("execute")["tier"].tolist() == [Tier.COMPILED, Tier.MEMORY]
    assert len(run.events("compile")) == 1
    (program,) = run.programs().to_dict("records")
    assert (program["name"], program["kind"], program["ops"]) == ("jit_add", "segment", 2)
    assert (program["bytes_in"], program["bytes_out"]) == (4 * 8 * 4 + 8 * 2, 4 * 8 * 4)
    ops = run.detail("program_ops").merge(run.detail("sites"), on="site")
    assert ops["op"].astype(str).tolist() == ["aten::add.Tensor", "aten::relu"]
    assert ops["line"].tolist() == [17, 18]
    assert set(ops["file"].astype(str)) == {"/home/me/model.py"}
