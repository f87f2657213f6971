"""Comparison, gate, history and pictures over ladders that were really run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ladder_commands import changed, run, write_ladder
from tpu_perf.analysis.caveats import MAX_OTHERS
from tpu_perf.record.store import load_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ladders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny job; the same again; and with every step 60 ms longer."""
    home = tmp_path_factory.mktemp("ladders")
    made = {}
    for name, rung in (
        ("base", changed("mine", slow_s=0.0)),
        ("again", changed("mine", slow_s=0.0)),
        ("slower", changed("mine", slow_s=0.06)),
    ):
        folder = home / name
        folder.mkdir()
        file = write_ladder(folder, rung)
        text = file.read_text(encoding="utf-8").replace("rounds: 3", "rounds: 6")
        file.write_text(text.replace("baseline: cpu_eager", "baseline: mine"), encoding="utf-8")
        done = run("ladder", file, "--out", home / "runs" / name)
        assert done.returncode == 0, done.stderr
        made[name] = home / "runs" / name
    return made


def document(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return found


def test_a_slower_job_is_a_regression_where_the_machine_was_its_own(
    ladders: dict[str, Path],
) -> None:
    # The jobs' parameters differ, as they must to be unlike, so both are forced.
    gate = ("gate", ladders["base"], ladders["slower"], "--max-regression", "20%", "--force")
    check = document(*gate)["checks"][0]
    shares = [
        load_run(ladders[name] / "rungs/mine").run.facts.other_cpu_share or 0.0
        for name in ("base", "slower")
    ]
    expected = "not resolved" if max(shares) > MAX_OTHERS else "regressed"
    assert check["state"] == expected, check
    assert check["against"][0]["change"]["value"] > 3
    assert run(*gate).returncode == (1 if expected == "regressed" else 0)
    generous = ("--max-regression", "100000%", "--force")
    assert run("gate", ladders["base"], ladders["slower"], *generous).returncode == 0


def test_another_workload_is_refused_by_name(ladders: dict[str, Path]) -> None:
    refused = run("compare", ladders["base"], ladders["slower"])
    assert refused.returncode == 2
    assert "workload params.slow_s: 0.0 against 0.06" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_same_job_again_shows_no_difference_in_what_is_counted(
    ladders: dict[str, Path],
) -> None:
    metrics = document("compare", ladders["base"], ladders["again"])["rungs"][0]["metrics"]
    assert metrics["model_flops_per_step"]["verdict"] == "same"
    assert metrics["step_time"]["samples"] == [6, 6]
    assert metrics["hbm_peak_bytes"]["verdict"] == "unknown"  # torch's CPU allocator keeps none


def test_history_and_pictures_of_real_runs(ladders: dict[str, Path], tmp_path: Path) -> None:
    listed = document("history", ladders["base"].parent)
    (series,) = listed["series"]
    assert [Path(point["run"]).parts[0] for point in series["runs"]] == list(ladders)
    done = run("report", ladders["base"], "--png", "--svg", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "step-time.png").stat().st_size
    assert (tmp_path / "step-time.svg").stat().st_size
