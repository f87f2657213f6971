"""A ladder's rungs say which line, module and instruction took what, in every way of running."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.ladder_commands import JOB, run, write_ladder
from tpu_perf.analysis.run_analysis import analyse
from tpu_perf.hlo.module import read_module
from tpu_perf.record.details import HLO_FILE
from tpu_perf.record.store import StoredRun, load_run

RUNGS = ("strict", "defer_and_fuse", "compile", "whole_step")
HIDDEN, BATCH = 8, 16
#: Forward 2*16*4*8 + 2*16*8*1; backward the weights' products again, and the second layer's input.
MODEL_FLOPS = 2 * BATCH * (4 * HIDDEN + HIDDEN) * 2 + 2 * BATCH * HIDDEN
PARAMETER_BYTES = 4 * (4 * HIDDEN + HIDDEN + HIDDEN + 1)


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("details")
    file = write_ladder(folder, "cpu_eager", *RUNGS)
    done = run("ladder", file, "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.fixture(params=RUNGS)
def stored(request: pytest.FixtureRequest, ladder: Path) -> StoredRun:
    return load_run(ladder / "rungs" / str(request.param))


def test_modules_and_lines_of_the_users_job(stored: StoredRun) -> None:
    by_module = analyse(stored, "module", "causal").table
    labels = {row.label for row in by_module.rows}
    assert {"0 (Linear)", "1 (Tanh)", "2 (Linear)"} <= labels
    model = next(line for line in JOB.splitlines() if "model(batch" in line)
    number = [line.strip() for line in JOB.splitlines()].index(model.strip())
    lines = {row.label for row in analyse(stored, "line", "causal").table.rows}
    assert any(label.startswith(f"job.py:{number + 1} ") for label in lines)


def test_forward_backward_and_optimizer_are_told_apart(stored: StoredRun) -> None:
    rows = {row.label: row for row in analyse(stored, "phase", "causal").table.rows}
    assert {"forward", "backward", "optimizer"} <= set(rows)
    forward = rows["forward"].measures["model_flops"].value
    assert forward == 2 * BATCH * (4 * HIDDEN + HIDDEN)


def test_model_flops_are_the_same_in_every_way_of_running(stored: StoredRun) -> None:
    assert analyse(stored, "op", "causal").step["model_flops"].value == MODEL_FLOPS


def test_the_device_was_watched_and_its_instructions_are_known(stored: StoredRun) -> None:
    device = stored.events("device")
    probes = stored.steps()[stored.steps()["phase"] == "probe"]
    assert set(probes["step"]) <= set(device["step"])
    known = stored.detail("instructions")
    named = set(zip(known["program"], known["instruction"].astype(str), strict=True))
    seen = device[device["program"] >= 0]
    assert len(seen) > 0.9 * len(device)
    assert set(zip(seen["program"], seen["instruction"].astype(str), strict=True)) <= named


def test_what_is_alive_at_the_peak_is_named(stored: StoredRun) -> None:
    labels = stored.detail("buffer_labels")
    parameters = labels[labels["category"].astype(str) == "parameter"]
    assert set(parameters["name"].astype(str)) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert int(parameters["nbytes"].sum()) == PARAMETER_BYTES
    state = labels[labels["category"].astype(str) == "optimizer_state"]
    assert int(state["nbytes"].sum()) >= PARAMETER_BYTES  # momentum
    groups = {held.group: held.nbytes for held in analyse(stored, "op", "causal").memory.groups}
    assert groups["parameter"] == PARAMETER_BYTES


def test_programs_of_several_ops_have_their_buffer_assignment(ladder: Path) -> None:
    import zstandard

    stored = load_run(ladder / "rungs" / "whole_step")
    programs = stored.programs()
    executed = set(stored.events("execute")["program"])
    step = programs[(programs["kind"].astype(str) == "step") & programs["program"].isin(executed)]
    for key in step["key"].astype(str):
        path = stored.directory / "programs" / key[:32] / HLO_FILE
        data = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
        assert read_module(data).buffer_assignment is not None


def test_steps_that_were_looked_into_are_not_timed(stored: StoredRun) -> None:
    steps = stored.steps()
    assert list(steps["phase"])[-2:] == ["probe", "probe"]
    assert (steps[steps["phase"] == "timed"]["step"] < steps["step"].iloc[-2]).all()
