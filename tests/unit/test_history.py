"""Histories: the index follows the run directories, whatever happens to either."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stored_ladders import ENVIRONMENT, FACTS, plan, warm_timeline, write_run
from tpu_perf.analysis.history import history
from tpu_perf.analysis.history_index import INDEX_FILE
from tpu_perf.cli.main import main
from tpu_perf.errors import ConfigError, StoredRunError
from tpu_perf.export.history_lines import history_lines, sparkline
from tpu_perf.record.metric import Metric
from tpu_perf.record.run import Run


def run_at(
    home: Path, name: str, day: int, step_s: float | None, *, rung: str = "strict",
    torch: str = "2.13.0", commit: str = "c0ffee",
) -> Path:  # fmt: skip
    """A run directory of the given day, in its own ladder directory."""
    found = Metric.missing("s", "no timed step")
    if step_s is not None:
        found = Metric(value=step_s, unit="s", provenance="measured", low=step_s, high=step_s)
    environment = replace(ENVIRONMENT, versions={"torch": torch}, git_commit=commit)
    run = Run(
        plan=plan(rung), environment=environment, status="ok", facts=FACTS,
        metrics={"step_time": found}, started_at=f"2026-01-{day:02d}T12:00:00+00:00",
    )  # fmt: skip
    return write_run(home / name / "rungs" / rung, warm_timeline(50.0), run=run)


def values(home: Path, **options: str) -> dict[str, list[float]]:
    return {series.rung: series.values for series in history(home, **options).series}  # type: ignore[arg-type]


def test_runs_are_listed_in_time_by_ladder_and_rung(tmp_path: Path) -> None:
    run_at(tmp_path, "b", 2, 0.2)
    run_at(tmp_path, "a", 3, 0.3)
    run_at(tmp_path, "deep/er/c", 1, 0.1, torch="2.12.0", commit="deadbeef")
    run_at(tmp_path, "a", 3, 0.5, rung="whole_step")
    assert values(tmp_path) == {"strict": [0.1, 0.2, 0.3], "whole_step": [0.5]}
    assert values(tmp_path, rung="whole_step") == {"whole_step": [0.5]}
    assert values(tmp_path, ladder="nothing") == {}
    points = history(tmp_path, rung="strict").series[0].points
    assert points[0].commit == "deadbeef"
    assert points[1].changed == {"torch": ("2.12.0", "2.13.0")}
    assert points[2].changed == {}
    text = "\n".join(history_lines(history(tmp_path), last=0))
    assert "torch 2.12.0 -> 2.13.0" in text
    assert "+100.0 %" in text


def test_the_index_follows_what_happens_to_runs(tmp_path: Path) -> None:
    first = run_at(tmp_path, "a", 1, 0.1)
    run_at(tmp_path, "b", 2, 0.2)
    assert values(tmp_path)["strict"] == [0.1, 0.2]
    run_at(tmp_path, "b", 2, 0.25)
    run_at(tmp_path, "c", 3, 0.3)
    assert values(tmp_path)["strict"] == [0.1, 0.25, 0.3]
    (first / "run.json").unlink()
    assert values(tmp_path)["strict"] == [0.25, 0.3]
    (tmp_path / INDEX_FILE).unlink()
    assert values(tmp_path)["strict"] == [0.25, 0.3]


@pytest.mark.parametrize("damage", ["noise", "version", "tables"])
def test_an_index_that_cannot_be_used_is_made_anew(damage: str, tmp_path: Path) -> None:
    run_at(tmp_path, "a", 1, 0.1)
    assert values(tmp_path)["strict"] == [0.1]
    file = tmp_path / INDEX_FILE
    if damage == "noise":
        file.write_bytes(b"not a database " * 100)
    else:
        with sqlite3.connect(file) as index:
            index.execute("PRAGMA user_version = 99" if damage == "version" else "DROP TABLE runs")
        index.close()
    assert values(tmp_path)["strict"] == [0.1]


def test_a_directory_that_cannot_be_written_is_listed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_at(tmp_path, "a", 1, 0.1)
    # root may write anywhere, so the directory's place for an index is taken by a directory.
    (tmp_path / INDEX_FILE).mkdir()
    assert values(tmp_path)["strict"] == [0.1]


def test_damaged_runs_and_unknown_values_are_told(tmp_path: Path) -> None:
    run_at(tmp_path, "a", 1, None)
    torn = run_at(tmp_path, "b", 2, 0.2)
    (torn / "run.json").write_text('{"schema_version": 1, "status": ', encoding="utf-8")
    found = history(tmp_path)
    assert list(found.unreadable) == ["b/rungs/strict"]
    assert found.series[0].values == []
    assert found.series[0].points[0].metric.reason == "no timed step"
    text = "\n".join(history_lines(found, last=10))
    assert "no timed step" in text
    assert "unreadable: b/rungs/strict" in text


def test_links_and_unfinished_runs_are_not_followed(tmp_path: Path) -> None:
    outside = run_at(tmp_path / "outside", "x", 1, 0.9)
    home = tmp_path / "home"
    run_at(home, "a", 1, 0.1)
    (home / "link").symlink_to(tmp_path / "outside")
    (home / "run").mkdir()
    (home / "run/run.json").symlink_to(outside / "run.json")
    partial = run_at(home, "c", 1, 0.2)
    partial.rename(partial.with_name("strict.partial"))
    os.symlink(home, home / "loop")
    assert values(home) == {"strict": [0.1]}


def test_several_processes_may_list_at_once(tmp_path: Path) -> None:
    for day in range(1, 6):
        run_at(tmp_path, f"l{day}", day, day / 10)
    command = [sys.executable, "-m", "tpu_perf", "history", str(tmp_path), "--json"]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: subprocess.run(command, capture_output=True), range(4)))
    for process in done:
        assert process.returncode == 0, process.stderr
        runs = json.loads(process.stdout)["series"][0]["runs"]
        assert [run["metric"]["value"] for run in runs] == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_wrong_questions_are_answered_with_what_is_right(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown metric"):
        history(tmp_path, "speed")
    with pytest.raises(StoredRunError, match="not a directory"):
        history(tmp_path / "nothing")
    assert list(history_lines(history(tmp_path), 1)) == [f"no runs below {tmp_path}"]


def test_a_sparkline_shows_each_value_or_medians_of_many() -> None:
    assert sparkline([1.0, 2.0, 8.0]) == "▁▂█"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([0.0] * 50 + [7.0] * 50, width=4) == "▁▁██"
    assert sparkline([]) == ""


@pytest.mark.parametrize("ending", ["png", "svg", "html"])
def test_the_chart_is_a_file_without_anything_fetched(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_at(tmp_path, "a", 1, 0.1)
    run_at(tmp_path, "b", 2, 0.2)
    file = tmp_path / f"chart.{ending}"
    with pytest.raises(SystemExit) as exit_:
        main(["history", str(tmp_path), "--chart", str(file)])
    assert exit_.value.code == 0
    assert "finetune / strict  step_time, 2 runs  ▁█" in capsys.readouterr().out
    content = file.read_bytes()
    assert content
    assert b"<script src=" not in content
    with pytest.raises(SystemExit) as exit_:
        main(["history", str(tmp_path), "--chart", str(tmp_path / "chart.gif")])
    assert exit_.value.code == 2
