"""The MLflow export against real stores on disk, read back with MLflow's own client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.stored_ladders import partial_ladder, two_rungs
from tpu_perf.cli.main import main

mlflow: Any = pytest.importorskip("mlflow")


@pytest.fixture(params=["file", "sqlite"])
def client(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of an empty store that the environment names."""
    if request.param == "sqlite":
        pytest.importorskip("alembic")
        uri = f"sqlite:///{tmp_path}/mlflow.db"
    else:
        uri = f"file://{tmp_path}/mlruns"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return mlflow.MlflowClient(tracking_uri=uri)


def export(directory: Path) -> dict[str, Any]:
    with pytest.raises(SystemExit) as exit_:
        main(["export", str(directory), "--format", "mlflow"])
    assert exit_.value.code == 0
    found: dict[str, Any] = json.loads((directory / "mlflow_export.json").read_text())
    return found


def test_a_ladder_is_a_run_with_its_rungs_below(client: Any, tmp_path: Path) -> None:
    home = two_rungs(tmp_path / "ladder")
    ids = export(home)
    experiment = client.get_experiment_by_name("tpu_perf/finetune")
    runs = {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {ids["run"], *ids["rungs"].values()}
    strict = runs[ids["rungs"]["strict"]]
    assert strict.data.tags["mlflow.parentRunId"] == ids["run"]
    assert strict.info.status == "FINISHED"
    assert strict.data.metrics["step_time"] == pytest.approx(0.1)
    assert strict.data.metrics["step_time_low"] == pytest.approx(0.1)
    assert strict.data.metrics["speedup"] == pytest.approx(1.0)
    assert strict.data.params["precision"] == "float32"
    assert strict.data.params["workload.params.model"] == "qwen3"
    assert strict.data.tags["version.torch"] == "2.13.0"
    steps = client.get_metric_history(ids["rungs"]["strict"], "step_seconds")
    assert len(steps) == 12
    assert {artifact.path for artifact in client.list_artifacts(ids["run"])} == {
        "report.html", "report.md", "ladder.json",
    }  # fmt: skip
    assert [a.path for a in client.list_artifacts(ids["rungs"]["strict"])] == ["run.json"]


def test_a_ladder_exported_again_is_replaced(client: Any, tmp_path: Path) -> None:
    home = two_rungs(tmp_path / "ladder")
    first, second = export(home), export(home)
    assert first["run"] != second["run"]
    runs = client.search_runs([second["experiment_id"]])
    assert {run.info.run_id for run in runs} == {second["run"], *second["rungs"].values()}


def test_rungs_of_every_fate_are_told(client: Any, tmp_path: Path) -> None:
    ids = export(partial_ladder(tmp_path / "ladder"))
    states = {name: client.get_run(run).info.status for name, run in ids["rungs"].items()}
    assert states["strict"] == "FINISHED"
    assert states["cpu_inductor"] == "KILLED"
    assert states["compile"] == "FAILED"
    assert "no lowering" in client.get_run(ids["rungs"]["compile"]).data.tags["reason"]


def test_a_store_that_refuses_is_an_error_for_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://nowhere")
    with pytest.raises(SystemExit) as exit_:
        main(["export", str(two_rungs(tmp_path)), "--format", "mlflow"])
    assert exit_.value.code == 4
    assert "MLflow does not take the ladder" in capsys.readouterr().err
