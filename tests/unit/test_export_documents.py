"""The JSON document and the CSV table of a ladder."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from tests.stored_ladders import partial_ladder, two_rungs, write_ladder_of
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.export import csv as csv_export
from tpu_perf.export import json_document
from tpu_perf.export.interface import EXPORTERS
from tpu_perf.record.metric import METRIC_UNITS


def test_the_document_has_exactly_the_promised_keys(tmp_path: Path) -> None:
    complete(two_rungs(tmp_path))
    document = json_document.ladder_document(tmp_path)
    assert list(document) == [
        "schema_version",
        "ladder",
        "id",
        "dir",
        "baseline",
        "environment",
        "rungs",
    ]
    assert document["dir"] == str(tmp_path.resolve())
    assert document["environment"]["cpu"] == "Test CPU"
    for rung in document["rungs"]:
        assert list(rung) == ["name", "status", "reason", "run", "metrics"]
        assert (tmp_path / rung["run"] / "run.json").exists()
        assert list(rung["metrics"]) == list(METRIC_UNITS)
        for metric in rung["metrics"].values():
            assert metric.keys() >= {"value", "unit", "provenance", "low", "high"}
    assert document["rungs"][1]["metrics"]["speedup"]["value"] == 2.5


def test_missing_values_are_null_with_a_reason(tmp_path: Path) -> None:
    complete(partial_ladder(tmp_path))
    rungs = {rung["name"]: rung for rung in json_document.ladder_document(tmp_path)["rungs"]}
    assert {name: rung["status"] for name, rung in rungs.items() if name[0] != "<"} == {
        "strict": "ok",
        "debug": "failed",
        "compile": "failed",
        "timed_out": "timeout",
        "too_big": "does_not_fit",
        "cpu_inductor": "skipped",
        "missing": "skipped",
        "torn": "failed",
    }
    for name in ("debug", "compile", "timed_out", "too_big", "cpu_inductor", "missing", "torn"):
        assert len(rungs[name]["metrics"]) == len(METRIC_UNITS)
        for metric in rungs[name]["metrics"].values():
            assert metric["value"] is None
            assert metric["reason"]
    assert "cannot be read" in rungs["torn"]["reason"]


def test_a_baseline_that_failed_leaves_the_others_without_a_speedup(tmp_path: Path) -> None:
    complete(partial_ladder(tmp_path))
    write_ladder_of(tmp_path, ["compile", "strict"])
    complete(tmp_path)
    strict = json_document.ladder_document(tmp_path)["rungs"][1]["metrics"]
    assert strict["step_time"]["value"] == 0.1
    assert strict["speedup"]["value"] is None
    assert strict["speedup"]["reason"].startswith("the baseline compile has no result (failed: ")


def test_written_document_is_strict_json(tmp_path: Path) -> None:
    complete(partial_ladder(tmp_path))
    path = json_document.write(tmp_path)
    assert json.loads(path.read_text(), parse_constant=no_constants) == (
        json_document.ladder_document(tmp_path)
    )


def no_constants(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_csv_has_a_line_per_rung_and_metric(tmp_path: Path) -> None:
    complete(two_rungs(tmp_path))
    with csv_export.write(tmp_path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(METRIC_UNITS)
    (speedup,) = [r for r in rows if r["rung"] == "whole_step" and r["metric"] == "speedup"]
    assert (speedup["value"], speedup["unit"], speedup["provenance"]) == ("2.5", "x", "measured")


def test_csv_does_not_let_a_name_become_a_formula() -> None:
    assert csv_export.as_text("=1+1") == "'=1+1"
    assert csv_export.as_text("strict") == "strict"


def test_exporters_are_found_by_their_files() -> None:
    assert {"json", "csv"} <= set(EXPORTERS)
