"""XPlane captures read into run directories: our own exports, JAX's, damaged and unknown ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.stored_captures import DEVICE_TIMELINE, KEYS, write_capture
from tests.stored_ladders import MS, plan
from tpu_perf.analysis.run_analysis import analyse
from tpu_perf.errors import ImportProblem
from tpu_perf.export.runs.xprof import write
from tpu_perf.importers.interface import IMPORTERS, Imported
from tpu_perf.importers.xplane import read, recognises
from tpu_perf.record.run import Run
from tpu_perf.record.store import RunWriter, StoredRun, load_run
from tpu_perf.xplane.plane_writer import EventColumns, PlaneWriter
from tpu_perf.xplane.schema import parse_space

CAPTURE = """import sys
import jax, jax.numpy as jnp

@jax.jit
def train_step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)

w, x = jnp.ones((64, 64)), jnp.ones((16, 64))
train_step(w, x).block_until_ready()
with jax.profiler.trace(sys.argv[1]):
    for step in range(3):
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            w = train_step(w, x).block_until_ready()
"""


def imported(path: Path, directory: Path) -> tuple[Imported, StoredRun]:
    writer = RunWriter(directory)
    found = read(path, writer)
    writer.finish(Run(plan=plan("imported"), environment=None, status="ok"))
    return found, load_run(directory)


def total(frame: pd.DataFrame) -> int:
    return int((frame["t_end_ns"] - frame["t_start_ns"]).sum())


def test_round_trip(tmp_path: Path) -> None:
    """A run that was exported and imported has the same steps, device time, FLOPs and bytes."""
    origin = load_run(write_capture(tmp_path / "run"))
    write(origin, tmp_path / "log")
    found, back = imported(tmp_path / "log", tmp_path / "back")
    assert found.device_count == 1
    assert not any(name.startswith("kept as") for name in found.counts)

    steps = origin.steps()
    steps = steps[steps["phase"].isin(["timed", "probe"])].reset_index(drop=True)
    columns = ["t_start_ns", "t_dispatched_ns", "t_end_ns"]
    clock = int(steps["t_start_ns"].iloc[0] - back.steps()["t_start_ns"].iloc[0])
    assert back.steps()[["step", "phase"]].astype(str).equals(steps[["step", "phase"]].astype(str))
    assert (back.steps()[columns] + clock).equals(steps[columns])

    device = back.events("device")
    ops = device[device["lane"] != "module"]
    assert total(ops) == total(origin.events("device"))
    assert set(device["step"]) == {5, 6}
    for run in (origin, back):
        table = run.detail("instructions").set_index("instruction").sort_index()
        assert list(table.index) == sorted(DEVICE_TIMELINE)
        assert table["flops"].fillna(-1).tolist() == [1e9, 2e6, -1]
        assert table["bytes_read"].tolist() == [3e9, 1.5e9, 0.5e9]
        assert table["bytes_written"].tolist() == [1e9, 0.5e9, 0.5e9]
        assert table["category"].tolist() == ["matmul", *["elementwise fusion"] * 2]
        named = run.detail("program_ops").merge(run.detail("sites"), on="site")
        (matmul,) = named[named["op"] == "aten::mm"].to_dict("records")
        where = (matmul["module"], matmul["file"], matmul["line"], matmul["phase"])
        assert where == ("blocks.0.linear", "model.py", 10, "forward")
    for kind in ("dispatch", "execute", "compile", "flush", "transfer", "sync", "annotation"):
        mine, theirs = origin.events(kind), back.events(kind)
        assert len(mine) == len(theirs), kind
        assert total(mine) == total(theirs), kind
    assert origin.events("memory")["live_bytes"].equals(back.events("memory")["live_bytes"])
    assert origin.events("memory")["delta_bytes"].equals(back.events("memory")["delta_bytes"])
    assert origin.events("transfer")["bytes"].equals(back.events("transfer")["bytes"])
    names = back.programs()["name"].astype(str).tolist()
    assert sorted(names) == ["adamw", "forward_backward"]


def test_hlo_survives(tmp_path: Path) -> None:
    import zstandard

    hlo = b"\x0a\x07\x0a\x05jit_f"  # an HloProto whose module is called jit_f
    origin = load_run(write_capture(tmp_path / "run", hlo=hlo))
    write(origin, tmp_path / "log")
    _, back = imported(tmp_path / "log", tmp_path / "back")
    programs = back.programs().set_index("name")
    key = str(programs.loc["forward_backward", "key"])
    assert key not in KEYS
    stored = back.directory / "programs" / key[:32] / "hlo.pb.zst"
    assert zstandard.ZstdDecompressor().decompress(stored.read_bytes(), 1000) == hlo


def test_derived_device_spans_stay_apart(tmp_path: Path) -> None:
    """What was derived from execute events does not come back as something XLA measured."""
    origin = load_run(write_capture(tmp_path / "run", device_events=False))
    write(origin, tmp_path / "log")
    found, back = imported(tmp_path / "log", tmp_path / "back")
    assert back.events("device").empty
    assert any("derived from the host's calls" in note for note in found.notes)
    assert found.counts["kept as annotation: /device:TPU:0/XLA Ops"] == 14


@pytest.fixture(scope="module")
def jax_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("jax")
    subprocess.run(
        [sys.executable, "-c", CAPTURE, str(directory)],
        check=True,
        capture_output=True,
        timeout=120,
        env={"JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"},
    )
    return directory


def test_capture_of_jax(jax_capture: Path, tmp_path: Path) -> None:
    assert recognises(jax_capture)
    found, run = imported(jax_capture, tmp_path / "run")
    assert found.device_kind == "cpu"
    assert "jax" in found.versions
    assert run.steps()["step"].tolist() == [0, 1, 2]
    device = run.events("device")
    (step_program,) = device["program"].unique()  # one jitted function ran in the window
    programs = run.programs().set_index("program")
    assert programs.loc[step_program, "name"] == "jit_train_step"
    assert device.groupby("step").size().nunique() == 1  # the same instructions in every step
    instructions = run.detail("instructions")
    instructions = instructions[instructions["program"] == step_program]
    assert set(device["instruction"]) <= set(instructions["instruction"])
    executes = run.events("execute")
    assert executes["program"].tolist() == [step_program] * 3
    dispatches = run.events("dispatch")
    assert dispatches["op"].tolist() == ["PjitFunction(train_step)"] * 3

    # Nothing is dropped: JAX's own reader counts as many events as were read.
    from jax.profiler import ProfileData

    (file,) = jax_capture.rglob("*.xplane.pb")
    events = sum(len(list(line.events)) for plane in ProfileData.from_file(str(file)).planes
                 for line in plane.lines)  # fmt: skip
    assert sum(found.counts.values()) == events


def test_costs_of_a_capture_of_jax(jax_capture: Path, tmp_path: Path) -> None:
    """The profiler says no FLOPs on a CPU; the HLO in the capture does. x is (16, 64), w (64, 64):
    a product forward, and one for the gradient of w."""
    found, run = imported(jax_capture, tmp_path / "run")
    assert any("counted from its HLO" in note for note in found.notes)
    product = 2 * 16 * 64 * 64
    (program,) = run.events("device")["program"].unique()
    instructions = run.detail("instructions").set_index("program").loc[[program]]
    assert (instructions["flops"] == product).sum() == 2
    costs = run.programs().set_index("program").loc[program]
    assert (costs["bytes_in"], costs["bytes_out"]) == (4 * (64 * 64 + 16 * 64), 4 * 64 * 64)
    assert 2 * product < costs["flops"] < 2.2 * product
    analysis = analyse(run, "op", "causal", ["phase", "line"])
    assert analysis.step["hardware_flops"].value == costs["flops"]
    phases = {row.label: row.measures["hardware_flops"] for row in analysis.more["phase"].rows}
    for phase in ("forward", "backward"):
        assert product <= (phases[phase].value or 0) < 1.1 * product
    assert " dot(" in " ".join(instructions["text"].astype(str))
    assert any(row.label.startswith("<string>:6") for row in analysis.more["line"].rows)


LOOP = """
import sys
import jax, jax.numpy as jnp

looped = jax.jit(lambda w, x: jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), 0), x, None, length=7)[0])
w, x = jnp.ones((32, 32)), jnp.ones((8, 32))
looped(w, x).block_until_ready()
with jax.profiler.trace(sys.argv[1]):
    for _ in range(2):
        looped(w, x).block_until_ready()
"""


def test_a_loop_without_step_marks(tmp_path: Path) -> None:
    """Instructions of a scan count with its trips, from the HLO; the capture counts as one step;
    the calls of a lambda are found under the name that XLA gives its module."""
    directory = tmp_path / "jax"
    subprocess.run(
        [sys.executable, "-c", LOOP, str(directory)], check=True, capture_output=True, timeout=120,
        env={"JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    writer = RunWriter(tmp_path / "run")
    read(directory, writer)
    writer.finish(Run(plan=plan("imported", engine="import"), environment=None, status="ok"))
    run = load_run(tmp_path / "run")
    programs = run.programs().set_index("program")["name"].astype(str)
    assert [programs[number] for number in run.events("execute")["program"]] == ["jit__lambda"] * 2
    analysis = analyse(run, "op", "causal")
    products = 2 * 8 * 32 * 32 * 7
    flops = analysis.step["hardware_flops"].value
    assert flops is not None
    assert 2 * products < flops < 2.1 * products
    assert any("marks no steps" in warning for warning in analysis.warnings)


def test_unknown_planes_and_lines_are_kept(tmp_path: Path) -> None:
    plane = PlaneWriter("/host:Novel", 1)
    kind = plane.event_type("something new")
    import numpy as np

    one = np.array([kind], dtype=np.int64)
    plane.add_line(1, "line 9", EventColumns(type_id=one, start_ns=one * 5, duration_ns=one * 7))
    file = tmp_path / "h.xplane.pb"
    file.write_bytes(plane.to_bytes())
    found, run = imported(file, tmp_path / "run")
    (row,) = run.events("annotation").itertuples()
    assert (row.name, row.kind) == ("something new", "/host:Novel/line 9")
    assert (row.t_start_ns, row.t_end_ns) == (5, 12)
    assert found.counts == {"kept as annotation: /host:Novel/line 9": 1}
    assert any("no step marks" in note for note in found.notes)


def test_damage_is_an_import_problem_or_harmless(tmp_path: Path) -> None:
    """Cut off anywhere, or with any byte changed, a capture is read or refused, never a crash."""
    stored = load_run(write_capture(tmp_path / "run", phases=("timed",)))
    (file,) = write(stored, tmp_path / "log").files
    data = file.read_bytes()
    damaged = tmp_path / "damaged.xplane.pb"
    problems = []
    cut = [data[:size] for size in range(0, len(data), 97)]
    flipped = [
        data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :] for at in range(0, len(data), 61)
    ]
    for number, content in enumerate([*cut, *flipped]):
        damaged.write_bytes(content)
        try:
            read(damaged, RunWriter(tmp_path / f"out{number}"))
        except ImportProblem as problem:
            problems.append(str(problem))
    assert len(problems) > len(cut) // 2
    assert all("damaged.xplane.pb" in problem for problem in problems)


def test_problems_name_what_to_do(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    assert not recognises(tmp_path / "empty")
    with pytest.raises(ImportProblem, match=r"holds no \*.xplane.pb"):
        read(tmp_path / "empty", writer)
    for host in ("a", "b"):
        (tmp_path / f"{host}.xplane.pb").write_bytes(b"")
    with pytest.raises(ImportProblem, match="captures of 2 hosts") as caught:
        read(tmp_path, writer)
    assert "a.xplane.pb" in str(caught.value)
    with pytest.raises(ImportProblem, match="holds no planes"):
        read(tmp_path / "a.xplane.pb", writer)
    assert "xplane" in IMPORTERS


def test_module_time_of_a_file_is_ours(tmp_path: Path) -> None:
    """The planes as protobuf shows them hold the hand-computed op times."""
    stored = load_run(write_capture(tmp_path / "run"))
    (file,) = write(stored, tmp_path / "log").files
    (device,) = (p for p in parse_space(file.read_bytes()).planes if p.name == "/device:TPU:0")
    (ops,) = (line for line in device.lines if line.name == "XLA Ops")
    assert sum(event.duration_ps for event in ops.events) == 2 * 45 * MS * 1000
