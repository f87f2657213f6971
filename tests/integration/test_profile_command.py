"""`tpu-perf profile` on scripts that know nothing of it: what they print, and what is recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pandas as pd
import pytest

from tpu_perf.record.store import StoredRun, load_run

TRAIN = textwrap.dedent(
    """
    import sys
    import torch
    from torch import nn
    device, steps, fail = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.arange(32.0).reshape(4, 8) / 32
    for step in range(steps):
        if step == fail:
            raise ValueError("boom")
        optimizer.zero_grad()
        loss = model(x.to(device)).square().mean()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.6f}", model[0].weight.device.type)
    """
)


def profile(directory: Path, *arguments: str, script: str = TRAIN,
            **environment: str) -> subprocess.CompletedProcess[str]:  # fmt: skip
    (directory / "job.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-m", "tpu_perf", "profile", "--no-peak", *arguments],
        capture_output=True, text=True, check=False, cwd=directory, timeout=300,
        env={**os.environ, **environment},
    )  # fmt: skip


def recorded(directory: Path) -> tuple[StoredRun, pd.DataFrame]:
    stored = load_run(directory)
    return stored, stored.steps()


def test_a_training_script(tmp_path: Path) -> None:
    done = profile(tmp_path, "--out", "run", "job.py", "tpu", "14", "-1")
    assert done.returncode == 0, done.stderr
    plain = subprocess.run(
        [sys.executable, str(tmp_path / "job.py"), "tpu", "14", "-1"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert plain.stdout.splitlines()[0] in done.stdout  # the loss, to the last digit printed
    stored, steps = recorded(tmp_path / "run")
    assert stored.run.status == "ok"
    assert stored.run.facts.source["steps"] == "found by AdamW.step()"
    assert stored.run.facts.parameters == 8 * 16 + 16 + 16 + 1
    assert list(steps["phase"])[:2] == ["first", "warmup"]
    assert (steps["phase"] == "probe").sum() == 2
    assert len(steps) == 14

    sites = stored.detail("sites").set_index("site")
    events = stored.events("dispatch")
    probe = events[events["step"].isin(steps[steps["phase"] == "probe"]["step"])]
    linear = probe[probe["op"].astype(str) == "aten::linear.default"]
    assert len(linear) == 4
    places = sites.loc[linear["site"]]
    lines = TRAIN.splitlines()
    assert {lines[line - 1].split()[0] for line in places["line"]} == {"loss"}
    assert set(places["module"].astype(str)) == {"0", "2"}
    phases = set(sites.loc[probe[probe["site"] >= 0]["site"]]["phase"].astype(str))
    assert {"forward", "backward", "optimizer"} <= phases

    labels = stored.detail("buffer_labels")
    parameters = labels[labels["category"].astype(str) == "parameter"]
    assert set(parameters["name"].astype(str)) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert int(parameters["nbytes"].sum()) == 4 * stored.run.facts.parameters
    state = labels[labels["category"].astype(str) == "optimizer_state"]
    assert {"0.weight.exp_avg", "2.bias.exp_avg_sq"} <= set(state["name"].astype(str))

    device = stored.events("device")
    assert set(device["step"]) >= set(steps[steps["phase"] == "probe"]["step"])
    spans = steps.set_index("step").loc[device[device["step"] >= 0]["step"]]
    inside = device[device["step"] >= 0]["t_start_ns"].to_numpy()
    assert (inside >= spans["t_start_ns"].to_numpy()).all()
    assert (inside <= spans["t_end_ns"].to_numpy()).all()
    known = device[device["program"] >= 0]
    assert len(known) > 0.9 * len(device)
    instructions = stored.detail("instructions")
    named = set(zip(instructions["program"], instructions["instruction"].astype(str), strict=True))
    assert all((p, i) in named for p, i in zip(known["program"], known["instruction"].astype(str),
                                               strict=True))  # fmt: skip


@pytest.mark.parametrize("mode", ["TPU_DEFER_AND_FUSE", "TPU_LAUNCH_BLOCKING"])
def test_the_mode_is_that_of_the_script(tmp_path: Path, mode: str) -> None:
    done = profile(tmp_path, "--out", "run", "job.py", "tpu", "12", "-1", **{mode: "1"})
    assert done.returncode == 0, done.stderr
    stored, _ = recorded(tmp_path / "run")
    expected = {"TPU_DEFER_AND_FUSE": "defer_and_fuse", "TPU_LAUNCH_BLOCKING": "debug"}
    assert stored.run.plan.mode == expected[mode]


def test_a_script_that_fails_leaves_its_run_and_its_own_traceback(tmp_path: Path) -> None:
    done = profile(tmp_path, "--out", "run", "job.py", "tpu", "20", "9")
    assert done.returncode == 1
    assert "ValueError: boom" in done.stderr
    assert "tpu_perf" not in done.stderr.split("Traceback")[1].split("ValueError")[0]
    stored, steps = recorded(tmp_path / "run")
    assert stored.run.status == "failed"
    assert "boom" in str(stored.run.reason)
    assert "in step 9" in str(stored.run.reason)
    assert len(steps) == 9
    assert not (tmp_path / "run.partial").exists()


@pytest.mark.parametrize("how", ["interrupt", "kill"])
def test_a_job_that_is_ended_leaves_a_readable_run(tmp_path: Path, how: str) -> None:
    (tmp_path / "job.py").write_text(TRAIN)
    process = subprocess.Popen(
        [sys.executable, "-m", "tpu_perf", "profile", "--no-peak", "--out", "run", "job.py", "tpu",
         "10000000", "-1"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    partial = tmp_path / "run.partial"
    end = time.monotonic() + 120
    while not (partial / "buffer_labels.parquet").exists() and time.monotonic() < end:
        time.sleep(0.2)  # until the steps under XLA's profiler are over
    time.sleep(1)
    if how == "interrupt":
        os.killpg(process.pid, signal.SIGINT)
    else:
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        for child in listed.stdout.split():
            os.kill(int(child), signal.SIGKILL)
    code = process.wait(timeout=120)
    stored, steps = recorded(tmp_path / "run")
    assert stored.run.status == "failed"
    if how == "interrupt":
        assert code == 130
        assert "interrupted in step" in str(stored.run.reason)
        assert len(steps) > 5
    else:
        assert code == 137
        assert "SIGKILL" in str(stored.run.reason)
    assert not partial.exists()


@pytest.mark.parametrize("asked", ["cuda", "cpu", "cuda:0"])
def test_a_script_for_another_device_runs_on_tpu(tmp_path: Path, asked: str) -> None:
    done = profile(tmp_path, "--device", "tpu", "--out", "run", "job.py", asked, "12", "-1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith(" tpu")
    stored, _ = recorded(tmp_path / "run")
    assert not stored.events("execute").empty


NO_DEVICE = """
import numpy
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.from_numpy(numpy.ones((16, 4), "float32")))
for (x,) in torch.utils.data.DataLoader(data, batch_size=2, shuffle=True, num_workers=1):
    with torch.profiler.record_function("one_step"):
        loss = (model(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
assert isinstance(model[0].weight.detach().numpy(), numpy.ndarray)
print(loss.device.type, model[1].running_mean.device.type)
"""


def test_a_script_that_names_no_device_and_steps_by_expression(tmp_path: Path) -> None:
    done = profile(
        tmp_path, "--device", "tpu", "--steps", "one_s", "--out", "run", "job.py", script=NO_DEVICE
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "tpu tpu"
    stored, steps = recorded(tmp_path / "run")
    assert len(steps) == 8
    assert stored.run.facts.source["steps"] == "found by record_function 'one_step'"
    kinds = stored.events("annotation")["kind"].astype(str)
    assert {"user", "data", "optimizer"} <= set(kinds)


def test_a_module_gets_its_own_arguments(tmp_path: Path) -> None:
    script = "import sys, json; print(json.dumps([__name__, sys.argv[1:]]))"
    done = profile(tmp_path, "--out", "run", "-m", "job", "--steps", "3", "-m", "x", script=script)
    assert json.loads(done.stdout.splitlines()[0]) == ["__main__", ["--steps", "3", "-m", "x"]]
    stored, _ = recorded(tmp_path / "run")
    assert any("nothing ran on device" in warning for warning in stored.run.warnings)


def test_one_json_document_on_stdout(tmp_path: Path) -> None:
    done = profile(tmp_path, "--json", "--out", "run", "job.py", "tpu", "12", "-1")
    document = json.loads(done.stdout)
    assert document["step"]["step_time"]["provenance"] == "measured"
    assert done.stderr.splitlines()[0].endswith(" tpu")  # the script's own line


def test_a_schedule_and_torch_profilers_steps(tmp_path: Path) -> None:
    script = """
import torch
w = torch.ones(4, device="tpu", requires_grad=True)
optimizer = torch.optim.SGD([w], 0.1)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    for _ in range(10):
        for _ in range(2):  # two updates a step: the profiler's word counts
            w.sum().backward()
            optimizer.step()
        profiler.step()
"""
    done = profile(tmp_path, "--wait", "1", "--warmup", "1", "--active", "3", "--out", "run",
                   "job.py", script=script)  # fmt: skip
    assert done.returncode == 0, done.stderr
    stored, steps = recorded(tmp_path / "run")
    assert stored.run.facts.source["steps"] == "found by torch.profiler's step()"
    timed = steps[steps["phase"] == "timed"]["step"]
    assert len(timed) == 3
    ops = stored.events("dispatch")
    names = ops[ops["step"] == timed.iloc[-1]]["op"].astype(str)
    assert (names == "aten::sum.default").sum() + (names == "aten::sum").sum() == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "there is no script missing.py"),
        ([], "name a script"),
        (["--wait", "1", "job.py"], "--active"),
        (["--out", ".", "job.py"], "exists already"),
    ],
)
def test_wrong_requests(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = profile(tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
