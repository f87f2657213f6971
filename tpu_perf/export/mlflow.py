"""Exporter `mlflow`: a ladder as a run with one run a rung below it, in the user's MLflow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_perf.analysis.comparability import flattened
from tpu_perf.analysis.ladder_metrics import completed
from tpu_perf.analysis.rung_record import RungRecord, durations
from tpu_perf.errors import EnvironmentProblem, StoredRunError
from tpu_perf.export import html, markdown
from tpu_perf.export.interface import EXPORTERS, Exporter
from tpu_perf.record.ladder import Ladder
from tpu_perf.record.metric import METRIC_UNITS
from tpu_perf.record.store import RUN_FILE, write_json

if TYPE_CHECKING:
    from mlflow import MlflowClient

FILE_NAME = "mlflow_export.json"
LADDER_TAG, RUNG_TAG = "tpu_perf.ladder_id", "tpu_perf.rung"
_LONGEST_PARAMETER = 500
_MOST_STEPS, _MOST_PARAMETERS = 1_000, 100  # MLflow takes so many in one call
_STATES = {"ok": "FINISHED", "skipped": "KILLED"}


def write(directory: Path) -> Path:
    """Log the ladder to the tracking server that MLflow is set up for (MLFLOW_TRACKING_URI), in
    the experiment `tpu_perf/<ladder>`, and write mlflow_export.json with the ids of its runs.

    A ladder exported before is replaced. Raises EnvironmentProblem without mlflow, or if its
    server does not take it.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise EnvironmentProblem(
            "mlflow is not installed", hint="pip install 'tpu_perf[mlflow]'"
        ) from None
    ladder, rungs = completed(directory)
    try:
        client = MlflowClient()
        document = _log(client, directory, ladder, rungs)
    except MlflowException as error:
        raise EnvironmentProblem(f"MLflow does not take the ladder: {error}") from None
    except ImportError as error:
        raise EnvironmentProblem(
            f"this MLflow cannot reach its store: {error}", hint="set MLFLOW_TRACKING_URI"
        ) from None
    path = directory / FILE_NAME
    write_json(path, document)
    return path


def _log(
    client: MlflowClient, directory: Path, ladder: Ladder, rungs: list[RungRecord]
) -> dict[str, Any]:
    name = f"tpu_perf/{ladder.name}"
    found = client.get_experiment_by_name(name)
    experiment = found.experiment_id if found else client.create_experiment(name)
    ours = f"tags.`{LADDER_TAG}` = '{ladder.id.replace(chr(39), '')}'"
    for earlier in client.search_runs([experiment], ours):
        client.delete_run(earlier.info.run_id)
    tags = {LADDER_TAG: ladder.id.replace("'", ""), "tpu_perf.baseline": ladder.baseline}
    parent = client.create_run(experiment, run_name=ladder.id, tags=tags).info.run_id
    for artifact in (html.write(directory), markdown.write(directory), directory / "ladder.json"):
        client.log_artifact(parent, str(artifact))
    children = {rung.name: _log_rung(client, experiment, parent, tags, rung) for rung in rungs}
    client.set_terminated(parent, "FINISHED" if ladder.finished_at else "KILLED")
    return {
        "tracking_uri": client.tracking_uri,
        "experiment": name,
        "experiment_id": experiment,
        "run": parent,
        "rungs": children,
    }


def _log_rung(
    client: MlflowClient, experiment: str, parent: str, tags: Mapping[str, str], rung: RungRecord
) -> str:
    from mlflow.entities import Metric, Param

    own = {**tags, "mlflow.parentRunId": parent, RUNG_TAG: rung.name, **_tags(rung)}
    run: str = client.create_run(experiment, run_name=rung.name, tags=own).info.run_id
    params = [Param(key, value) for key, value in _params(rung)]
    at = _milliseconds(rung)
    metrics = [Metric(key, value, at, step) for key, value, step in _metrics(rung)]
    for start in range(0, len(params), _MOST_PARAMETERS):
        client.log_batch(run, params=params[start : start + _MOST_PARAMETERS])
    for start in range(0, len(metrics), _MOST_STEPS):
        client.log_batch(run, metrics=metrics[start : start + _MOST_STEPS])
    if rung.run is not None:
        client.log_artifact(run, str(rung.directory / RUN_FILE))
    client.set_terminated(run, _STATES.get(rung.status, "FAILED"))
    return run


def _milliseconds(rung: RungRecord) -> int:
    """When the rung began, in ms since 1970; 0 where it is not known."""
    try:
        started = None if rung.run is None else rung.run.started_at
        return int(1_000 * datetime.fromisoformat(started or "").timestamp())
    except ValueError:
        return 0


def _tags(rung: RungRecord) -> dict[str, str]:
    found = {"tpu_perf.status": rung.status, "tpu_perf.why": rung.why, "reason": rung.reason}
    there = None if rung.run is None else rung.run.environment
    if there is not None:
        found |= {"device": there.device_kind, "mlflow.source.git.commit": there.git_commit}
        found |= {f"version.{name}": version for name, version in there.versions.items()}
    return {name: value for name, value in found.items() if value}


def _params(rung: RungRecord) -> Iterator[tuple[str, str]]:
    """The plan by dotted name, as MLflow's parameters: text of limited length."""
    if rung.run is None:
        return
    for name, value in flattened(rung.run.plan.to_json()).items():
        key = "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)
        yield key[:250], str(value)[:_LONGEST_PARAMETER]


def _metrics(rung: RungRecord) -> Iterator[tuple[str, float, int]]:
    """Name, value and step: metrics with their intervals, then every timed step."""
    for name in METRIC_UNITS:
        metric = rung.metric(name)
        bounds = {"": metric.value, "_low": metric.low, "_high": metric.high}
        for suffix, value in bounds.items():
            if value is not None:
                yield f"{name}{suffix}", value, 0
    if rung.tables is None or not rung.ok:
        return
    try:
        timed = rung.tables.timed
    except StoredRunError:
        return
    rows = zip(timed["step"].tolist(), durations(timed), timed["loss"].tolist(), strict=True)
    for step, seconds, loss in rows:
        yield "step_seconds", float(seconds), int(step)
        if math.isfinite(loss):
            yield "loss", float(loss), int(step)


EXPORTERS.add(
    "mlflow",
    Exporter(name="mlflow", summary="params, metrics, artifacts", write=write, needs="mlflow"),
)
