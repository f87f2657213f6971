"""The terminal table: whole at 100 columns, honest about what failed, safe with user text."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.stored_ladders import FACTS, partial_ladder, two_rungs, warm_timeline, write_run
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.export.terminal import COLUMNS, fitting, render_ladder


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
    assert "40.00 ms     2.50x" in text
    assert "hidden, the screen is narrow:" in text
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= 60


def test_a_pipe_gets_everything_whatever_its_width(tmp_path: Path) -> None:
    complete(two_rungs(tmp_path))
    assert rendered(tmp_path, width=40) == rendered(tmp_path, width=200)


def test_columns_are_kept_by_importance() -> None:
    assert fitting(100) == COLUMNS
    assert [column.metric for column in fitting(50)] == ["step_time", "speedup"]


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
