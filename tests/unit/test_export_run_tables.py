"""csv, json and markdown of one run: read back by other readers, and refused when they differ."""

from __future__ import annotations

import csv as csv_reader
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.stored_runs import HOSTILE, detailed_rows, write_detailed_run
from tpu_perf.errors import ExportMismatch
from tpu_perf.export.run_interface import RUN_EXPORTERS
from tpu_perf.export.runs import csv, markdown
from tpu_perf.export.runs import json as run_json
from tpu_perf.record.metric import METRIC_UNITS
from tpu_perf.record.store import StoredRun

#: The timed step's ops: dispatches, and nanoseconds in them less those nested in them.
OPS = {"aten::mm": (3, 160_000), "aten::add_": (1, 60_000), "aten::t": (1, 40_000),
       "aten::softmax": (1, 30_000), "aten::relu": (1, 10_000)}  # fmt: skip


@pytest.fixture
def stored(tmp_path: Path) -> StoredRun:
    return write_detailed_run(tmp_path / "run", why=f"why {HOSTILE}", warnings=(HOSTILE,))


def csv_tables(directory: Path) -> dict[str, list[dict[str, str]]]:
    out = {}
    for path in directory.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            out[path.stem] = list(csv_reader.DictReader(file))
    return out


def test_every_format_is_found() -> None:
    assert set(RUN_EXPORTERS) == {"csv", "html", "json", "markdown", "perfetto", "xprof"}


def test_csv_holds_the_run(stored: StoredRun, tmp_path: Path) -> None:
    exported = csv.write(stored, tmp_path / "out")
    tables = csv_tables(tmp_path / "out")
    assert {file.stem for file in exported.files} == set(tables)
    assert [(row["step"], row["phase"], row["duration_ns"]) for row in tables["steps"]] == [
        ("0", "first", "900000"), ("1", "timed", "900000"), ("2", "probe", "900000"),
    ]  # fmt: skip
    assert {row["metric"] for row in tables["metrics"]} == set(METRIC_UNITS)
    known = {row["metric"]: row for row in tables["metrics"]}
    assert float(known["step_time"]["value"]) == pytest.approx(900e-6)
    assert known["step_time"]["provenance"] == "measured"
    assert known["speedup"]["value"] == ""
    assert known["speedup"]["reason"]
    counted = {row["op"]: (int(row["count"]), int(float(row["self_ns"]))) for row in tables["ops"]}
    assert counted == OPS
    memory = detailed_rows()["memory"]
    assert [int(row["live_bytes"]) for row in tables["memory"]] == [row[2] for row in memory]
    assert sum(float(row["bytes"]) for row in tables["peak_holders"]) == 2_000
    assert len(tables["programs"]) == 2
    assert len(tables["compiles"]) == 2
    assert {row["bytes_accessed"] for row in tables["programs"]} == {"4000.0", ""}  # unknown: empty


def test_csv_text_is_never_a_formula(stored: StoredRun, tmp_path: Path) -> None:
    csv.write(stored, tmp_path / "out")
    cells = [cell for rows in csv_tables(tmp_path / "out").values() for row in rows
             for cell in row.values()]  # fmt: skip
    assert any("alert(1)" in cell for cell in cells)
    assert not [cell for cell in cells if cell[:1] in "=@" and cell]


def test_csv_that_reads_back_differently_is_refused(
    stored: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = csv.cell
    monkeypatch.setattr(csv, "cell", lambda value: 1 if value == 900_000 else cell(value))
    with pytest.raises(ExportMismatch, match="duration_ns adds up to 3"):
        csv.write(stored, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_json_is_the_tables_and_the_run(stored: StoredRun, tmp_path: Path) -> None:
    (path,) = run_json.write(stored, tmp_path / "out").files
    csv.write(stored, tmp_path / "csv")
    document = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert document["run"] == json.loads((stored.directory / "run.json").read_text())
    tables = csv_tables(tmp_path / "csv")
    assert set(document["tables"]) == set(tables)
    for name, rows in document["tables"].items():
        assert len(rows) == len(tables[name]), name
        for row, text in zip(rows, tables[name], strict=True):
            assert list(row) == list(text)
            for key, value in row.items():
                if value is None:
                    assert text[key] == ""
                elif isinstance(value, (int, float)):
                    assert float(text[key]) == value
                else:
                    assert text[key].lstrip("'") == value


def test_json_that_reads_back_differently_is_refused(
    stored: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shortened(path: Path, document: dict[str, Any]) -> None:
        path.write_text(json.dumps(document | {"tables": {}}), encoding="utf-8")

    monkeypatch.setattr(run_json, "write_json", shortened)
    with pytest.raises(ExportMismatch, match="does not read back"):
        run_json.write(stored, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_markdown_has_the_figures_and_keeps_user_text_text(
    stored: StoredRun, tmp_path: Path
) -> None:
    (path,) = markdown.write(stored, tmp_path / "out").files
    text = path.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert any(re.match(r"\| step time \| 900\S* us m", row) for row in rows)
    (mm,) = (row for row in rows if row.startswith("| aten::mm "))
    assert "us |" in mm
    assert "<script>" not in text
    for number, row in enumerate(rows):  # every row has as many cells as the one above its table
        if number and rows[number - 1].startswith("| ---"):
            head = rows[number - 2]
            cells = len(re.findall(r"(?<!\\)\|", row))
            assert cells == len(re.findall(r"(?<!\\)\|", head))
