"""Chrome traces that torch.profiler itself made, gzipped or not, and what damage is called."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.stored_ladders import plan
from tpu_perf.analysis.run_analysis import analyse
from tpu_perf.cli.main import main
from tpu_perf.errors import ImportProblem
from tpu_perf.importers import chrome_trace
from tpu_perf.importers.interface import Imported
from tpu_perf.record.run import Run
from tpu_perf.record.store import RunWriter, StoredRun, load_run

#: argv: files to write, without steps first. The counts of the trace with steps go to stdout.
CAPTURE = """
import json, sys, torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    with record_function("my block"):
        loss = model(torch.ones(2, 8)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

bare, *rich = sys.argv[1:]
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    step()
profiler.export_chrome_trace(bare)

def ready(profiler):
    for path in rich:
        profiler.export_chrome_trace(path)
    print(json.dumps({event.key: event.count for event in profiler.key_averages()}))

with profile(
    activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True,
    with_modules=True, schedule=schedule(wait=0, warmup=1, active=3, repeat=1),
    on_trace_ready=ready,
) as profiler:
    for _ in range(4):
        step()
        profiler.step()
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A directory with bare.json, rich.json and rich.json.gz; torch's own counts by name."""
    directory = tmp_path_factory.mktemp("torch")
    files = [str(directory / name) for name in ("bare.json", "rich.json")]
    script = directory / "job.py"
    script.write_text(CAPTURE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), *files], check=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, timeout=120,
    )  # fmt: skip
    packed = directory / "rich.json.gz"
    packed.write_bytes(gzip.compress((directory / "rich.json").read_bytes()))
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return directory, counts


def imported(path: Path, directory: Path) -> tuple[Imported, StoredRun]:
    assert chrome_trace.recognises(path)
    writer = RunWriter(directory)
    found = chrome_trace.read(path, writer)
    writer.finish(Run(plan=plan("imported", engine="import"), environment=None, status="ok"))
    return found, load_run(directory)


def events_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return found


def test_every_op_is_there_as_torch_counts_it(
    captured: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    directory, counts = captured
    found, run = imported(directory / "rich.json", tmp_path / "run")
    read = Counter(run.events("dispatch")["op"].astype(str))
    aten = {name: number for name, number in counts.items() if name.startswith("aten::")}
    # Torch's table leaves out an op that is all that an op of the same name does.
    assert {name for name in aten if read[name] != aten[name]} == {"aten::sum"}
    in_file = Counter(e["name"] for e in events_of(directory / "rich.json")
                      if e.get("cat") == "cpu_op")  # fmt: skip
    assert read == in_file
    assert read["aten::addmm"] == 3 * 2
    assert run.steps()["step"].tolist() == [1, 2, 3]
    assert set(run.steps()["phase"]) == {"probe"}
    assert any("not fenced" in note for note in found.notes)
    assert found.device_kind == "cpu"


def test_nothing_is_dropped(captured: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    """Against the events of the file itself."""
    for name in ("bare.json", "rich.json"):
        found, _ = imported(captured[0] / name, tmp_path / name)
        assert sum(found.counts.values()) == len(events_of(captured[0] / name))


def test_times_are_those_of_the_file(captured: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    path = captured[0] / "rich.json"
    _, run = imported(path, tmp_path / "run")
    ops = [event for event in events_of(path) if event.get("cat") == "cpu_op"]
    dispatch = run.events("dispatch")
    assert dispatch["t_start_ns"].min() == pytest.approx(min(e["ts"] for e in ops) * 1e3, abs=1000)
    lasted = (dispatch["t_end_ns"] - dispatch["t_start_ns"]).sum()
    assert lasted == pytest.approx(sum(event["dur"] for event in ops) * 1e3, abs=len(ops))


def test_gzip_makes_no_difference(captured: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    plain, run = imported(captured[0] / "rich.json", tmp_path / "plain")
    packed, other = imported(captured[0] / "rich.json.gz", tmp_path / "packed")
    assert packed == plain
    for kind in ("dispatch", "annotation", "memory"):
        assert run.events(kind).equals(other.events(kind))


def test_where_ops_come_from(captured: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    _, run = imported(captured[0] / "rich.json", tmp_path / "run")
    sites = run.detail("sites").set_index("site")
    dispatch = run.events("dispatch")
    placed = dispatch[dispatch["site"] >= 0].join(sites, on="site")
    forward = placed[(placed["op"] == "aten::addmm") & (placed["phase"] == "forward")]
    assert sorted(set(forward["module"].astype(str))) == [
        "Sequential_0.Linear_0", "Sequential_0.Linear_1",
    ]  # fmt: skip
    assert len(forward) == 3 * 2
    assert set(forward["module_class"].astype(str)) == {"Linear"}
    assert set(forward["function"].astype(str)) == {"step"}
    assert set(forward["file"].astype(str).str.rpartition("/")[2]) == {"job.py"}
    gradients = placed[placed["op"] == "aten::mm"]
    assert set(gradients["phase"].astype(str)) == {"backward"}
    assert set(gradients["module"].astype(str)) == set(forward["module"].astype(str))
    updates = placed[placed["op"] == "aten::add_"]
    assert set(updates["phase"].astype(str)) == {"optimizer"}
    annotations = run.events("annotation")
    assert (annotations["name"].astype(str) == "my block").sum() == 3
    shapes = run.detail("calls").set_index("op")["arguments"].astype(str)
    assert "[2, 8]" in " ".join(shapes.loc[["aten::addmm"]])


def test_captures_are_analysed(captured: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    """With steps: means over those. Without: the capture as one. FLOPs unknown, never zero."""
    for name, ops, said in (("rich", 2, "3 steps that ran under"), ("bare", 2, "no steps")):
        _, run = imported(captured[0] / f"{name}.json", tmp_path / name)
        found = analyse(run, "op", "causal", ["module"])
        rows = {row.label: row for row in found.table.rows}
        assert rows["addmm"].measures["calls"].value == ops
        assert any(said in warning for warning in found.warnings)
        total = found.table.total.measures
        assert (total["host_time"].value or 0) > 0
        for measure in ("model_flops", "hardware_flops", "accessed_bytes", "runs", "device_time"):
            assert total[measure].value is None, measure
            assert rows["addmm"].measures[measure].value is None, measure


def test_damage_is_told_with_its_place(
    captured: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    text = (captured[0] / "rich.json").read_text(encoding="utf-8")
    packed = (captured[0] / "rich.json.gz").read_bytes()
    flipped = bytearray(packed)
    flipped[len(flipped) // 2] ^= 0xFF
    broken = {
        "cut.json": (text[: len(text) // 2].encode(), "is cut off at line"),
        "cut.json.gz": (packed[: len(packed) // 2], "gzip stream does not end"),
        "flipped.json.gz": (bytes(flipped), "damaged|not JSON|cut off"),
        "empty.json": (b'{"traceEvents": []}', "holds no event"),
        "times.json": (b'{"traceEvents": [{"ph": "X", "ts": "soon", "dur": 1}]}', "no number"),
        "nan.json": (b'{"traceEvents": [{"ph": "X", "ts": NaN, "dur": 1}]}', "no number"),
        "kind.json": (b'{"traceEvents": [3]}', r"traceEvents\[0\] is no event"),
        "list.json": (b'{"traceEvents": 3}', "no list"),
    }
    for name, (content, said) in broken.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ImportProblem, match=said) as caught:
            chrome_trace.read(path, RunWriter(tmp_path / f"run-{name}"))
        assert name in str(caught.value)


def test_the_command_leaves_nothing_of_a_damaged_file(
    captured: tuple[Path, dict[str, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    damaged = tmp_path / "damaged.json"
    damaged.write_bytes((captured[0] / "rich.json").read_bytes()[:5000])
    code, _, err = run("import", str(damaged), "--out", str(tmp_path / "run"))
    assert code == 2
    assert "damaged.json is cut off" in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.json"]
    good = captured[0] / "rich.json.gz"
    code, out, _ = run("import", str(good), "--out", str(tmp_path / "run"), "--json")
    assert code == 0
    assert json.loads(out)["importer"] == "chrome_trace"
    assert load_run(tmp_path / "run").run.plan.engine == "import"
    code, _, err = run("import", str(good), "--out", str(tmp_path / "run"))
    assert (code, "exists already" in err) == (2, True)


def test_what_nobody_knows_is_kept_and_counted(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "novel", "name": "thing", "ts": 1, "dur": 2, "pid": 1, "tid": 1},
        {"ph": "b", "cat": "later", "name": "async", "ts": 2, "pid": 1, "tid": 1, "id": 4},
        {"ph": "C", "name": "counter", "ts": 3, "pid": 1, "args": {"bytes": 5}},
        {"ph": "E", "ts": 9, "pid": 1, "tid": 1},
        {"ph": "B", "cat": "open", "name": "begun", "ts": 4, "pid": 1, "tid": 1},
    ]
    path = tmp_path / "novel.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    found, run = imported(path, tmp_path / "run")
    kept = run.events("annotation")
    assert set(zip(kept["name"].astype(str), kept["kind"].astype(str), strict=True)) == {
        ("thing", "novel"), ("async", "later"), ('counter {"bytes": 5}', "phase C"),
        ("", "phase E"), ("begun", "open"),
    }  # fmt: skip
    assert found.counts["kept as annotations of kind 'novel'"] == 1
    assert found.counts["begins without an end, kept as moments"] == 1
