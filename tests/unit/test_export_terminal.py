"""The terminal table: whole at 100 columns, honest about what failed, safe with user text."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.stored_ladders import FACTS, partial_ladder, two_rungs, warm_timeline, write_run
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.export.terminal import render_ladder
from tpu_perf.export.terminal_table import COLUMNS, DETAILS, SHARDING, MetricTable
from tpu_perf.record.metric import METRIC_UNITS


def rendered(directory: Path, width: int = 100, terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    render_ladder(directory, console)
    return out.getvalue()


def test_numbers_of_a_ladder(tmp_path: Path) -> None:
    complete(two_rungs(tmp_path))
    lines = rendered(tmp_path).splitlines()
    position = next(i for i, line in enumerate(lines) if line.startswith("whole_step"))
    assert " ".join(lines[position].split()) == (
        "whole_step ok 40.00 ms 2.50x 25,000 25.0 % 1,000 B 300 ms 1 92.9 % 1.0e-3"
    )
    assert lines[position + 1].split() == ["40.00-40.00", "2.50-2.50"]
    assert "  (baseline)" in lines[position - 1]
    assert "MFU against a peak of 100 GFLOP/s, measured GEMM 2048^3 float32 on this CPU" in lines
    assert any(str(tmp_path / "report.html") in line for line in lines)


@pytest.mark.parametrize("terminal", [False, True])
def test_no_line_passes_100_columns(tmp_path: Path, terminal: bool) -> None:
    complete(partial_ladder(tmp_path))
    for line in rendered(tmp_path, terminal=terminal).splitlines():
        assert len(line) <= 100 or str(tmp_path) in line, line


def test_every_fate_is_a_row_with_its_reason(tmp_path: Path) -> None:
    complete(partial_ladder(tmp_path))
    text = rendered(tmp_path)
    lines = text.splitlines()
    for name, reason in (
        ("compile", "RuntimeError: [red]no lowering for <b>aten::foo</b>"),
        ("timed_out", "no result after 300 s"),
        ("too_big", "needs 34.0 GiB of 16.0 GiB"),
        ("cpu_inductor", "no C++ compiler on this machine"),
        ("missing", "not run: the ladder ended before this rung left a run directory"),
        ("debug", "interrupted while it was being measured"),
    ):
        position = next(i for i, line in enumerate(lines) if line.split()[:1] == [name])
        assert reason in " ".join(line.strip() for line in lines[position : position + 4])
    assert "this ladder did not finish" in text


def test_markup_in_user_text_is_shown_as_it_is(tmp_path: Path) -> None:
    complete(partial_ladder(tmp_path))
    text = rendered(tmp_path)
    assert "[red]no lowering for <b>aten::foo</b>" in text
    assert "  <script>alert(1)</script>[bold]\n" in text


def test_a_narrow_terminal_drops_columns_not_digits(tmp_path: Path) -> None:
    complete(two_rungs(tmp_path))
    text = rendered(tmp_path, width=60, terminal=True)
    assert re.search(r"40\.00 ms +2\.50x", text)
    assert "hidden, the screen is narrow:" in text
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= 60


def test_a_pipe_gets_everything_whatever_its_width(tmp_path: Path) -> None:
    complete(two_rungs(tmp_path))
    assert rendered(tmp_path, width=40) == rendered(tmp_path, width=200)


def test_columns_are_kept_by_importance() -> None:
    assert MetricTable(COLUMNS, [], 100, status=True).hidden == ()
    assert MetricTable(DETAILS, [], 100, status=False).hidden == ()
    narrow = MetricTable(COLUMNS, [], 36, status=True).columns
    assert [column.metric for column in narrow] == ["step_time", "speedup"]


def test_every_metric_is_in_one_of_the_tables() -> None:
    shown = [column.metric for column in (*COLUMNS, *DETAILS, *SHARDING)]
    assert sorted(shown) == sorted(METRIC_UNITS)


def test_details_and_flushes(tmp_path: Path) -> None:
    two_rungs(tmp_path)
    timeline = warm_timeline(40.0)
    timeline.events["flush"] = [
        (0, 1, reason, 5, 0, step)
        for step, phase, *_ in timeline.steps
        if phase == "timed"
        for reason in ("item()", "repeated_op_heuristic", "repeated_op_heuristic")
    ]
    write_run(tmp_path / "rungs/whole_step", timeline)
    complete(tmp_path)
    text = rendered(tmp_path)
    assert "  whole_step     repeated_op_heuristic 2.00, item() 1.00\n" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("strict")]
    assert rows[1][1:9] == ["95.0", "ms", "20.0", "ms", "500", "ms", "450", "ms"]
    # what recording costs: measured here, derived for the rung without bare steps
    assert rows[1][-2:] == ["25.0", "%m"]


def test_mixed_provenance_is_marked_at_the_value(tmp_path: Path) -> None:
    two_rungs(tmp_path)
    facts = replace(FACTS, peak_provenance="assumed")
    write_run(tmp_path / "rungs/whole_step", warm_timeline(40.0), facts=facts)
    complete(tmp_path)
    text = rendered(tmp_path)
    assert "10.0 %d" in text
    assert "25.0 %a" in text
    assert "(ad)" in text


def test_a_ladder_that_was_never_completed_is_computed_but_not_written(tmp_path: Path) -> None:
    two_rungs(tmp_path)
    before = (tmp_path / "rungs/strict/run.json").read_bytes()
    assert "2.50x" in rendered(tmp_path)
    assert (tmp_path / "rungs/strict/run.json").read_bytes() == before
