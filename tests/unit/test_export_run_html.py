"""run.html of one run: figures as in the run, offline, safe with user text, checked when read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from tests.stored_captures import write_capture
from tests.stored_ladders import plan
from tests.stored_runs import HOSTILE, STEP_US, US, detailed_rows, write_detailed_run
from tests.unit.test_export_html import Page
from tpu_perf.errors import ExportMismatch
from tpu_perf.export.html import render
from tpu_perf.export.report import step_timeline
from tpu_perf.export.report.figures import TEXT_COLOUR
from tpu_perf.export.report.run_page import RunPage
from tpu_perf.export.runs import html
from tpu_perf.record.run import Run
from tpu_perf.record.store import RunWriter, load_run


def written(directory: Path) -> html.WrittenPage:
    (path,) = html.write(write_detailed_run(directory / "run"), directory / "out").files
    return html.WrittenPage(path.read_text(encoding="utf-8"))


def table(page: html.WrittenPage, *head: str) -> list[dict[str, str]]:
    """The rows of the one table whose head begins so, as dictionaries."""
    (found,) = (rows for rows in page.tables if rows[0][: len(head)] == head)
    return [dict(zip(found[0], row, strict=True)) for row in found[1:]]


def test_steps_are_those_of_the_run(tmp_path: Path) -> None:
    page = written(tmp_path)
    rows = table(page, "step", "phase")
    assert [(row["step"], row["phase"], row["compiles"]) for row in rows] == [
        ("0", "first", "2"),
        ("1", "timed", "0"),
        ("2", "probe", "0"),
    ]
    assert {row["time"] for row in rows} == {"900 us"}
    assert {row["until dispatched"] for row in rows} == {"700 us"}
    assert [row["loss"] for row in rows] == ["4", "3", "2"]


def test_ops_of_a_steady_step_add_up(tmp_path: Path) -> None:
    """Three mm of 50, 50 and 100 us; a t of 40 us lies inside the last."""
    page = written(tmp_path)
    tables = [rows for rows in page.tables if rows[0][1].startswith("calls")]
    assert [rows[0][0] for rows in tables] == [
        "op", "module", "line", "category", "phase", "program",
    ]  # fmt: skip
    for rows in tables:
        assert rows[-1][:2] == ("whole step", "7")
        assert sum(int(row[1]) for row in rows[1:-1]) == 7
    by_op = {row[0]: dict(zip(tables[0][0], row, strict=True)) for row in tables[0][1:]}
    assert by_op["mm"]["host time (m)"] == "160 us"
    assert by_op["mm"]["calls (m)"] == "3"
    assert by_op["relu"]["host time (m)"] == "10.0 us"


def test_the_timeline_draws_every_event_of_its_step(tmp_path: Path) -> None:
    """The profiled step: times since its start in us, by kind of event."""
    page = written(tmp_path)
    bars = [trace for trace in page.figures["timeline"]["data"] if trace["type"] == "bar"]
    drawn: dict[str, list[tuple[float, float]]] = {}
    for trace in bars:
        row = trace["y"][0]
        drawn.setdefault(row, []).extend(zip(trace["base"], trace["x"], strict=True))
    begin = 5_000_000 * US + 2 * STEP_US * US
    expected = {
        "ops": "dispatch", "annotations": "annotation", "flushes": "flush", "waits": "sync",
        "programs enqueued": "execute", "copies": "transfer", "device: TPU core 0": "device",
    }  # fmt: skip
    assert set(drawn) == set(expected)
    for row, kind in expected.items():
        own = [(event[0], event[1]) for event in detailed_rows()[kind] if event[0] >= begin]
        wanted = sorted(((start - begin) / US, (end - start) / US) for start, end in own)
        assert [pytest.approx(pair) for pair in wanted] == sorted(drawn[row])
    names = {trace["name"] for trace in bars}
    assert {"ops, forward", "ops, backward", "ops, optimizer"} <= names
    (backward,) = (trace for trace in bars if trace["name"] == "ops, backward")
    assert "aten::mm at model.py:11 forward" in backward["customdata"]


def test_many_slices_are_thinned_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_timeline, "MAX_SLICES", 2)
    (path,) = html.write(write_detailed_run(tmp_path / "run"), tmp_path / "out").files
    text = path.read_text(encoding="utf-8")
    figures = html.WrittenPage(text).figures
    assert all(len(trace["x"]) <= 2 for trace in figures["timeline"]["data"])
    # Forward ops 4 of which 2, backward 2, enqueues 4 of which 2, device 8 of which 2.
    assert "10 shorter slices are not drawn" in text


def test_memory_cache_and_waits(tmp_path: Path) -> None:
    page = written(tmp_path)
    held = {row["group"]: row["bytes"] for row in table(page, "group", "bytes")}
    assert held == {"temporary": "1,000 B", "before recording": "1,000 B"}
    tiers = {row["tier"]: row for row in table(page, "tier")}
    assert (tiers["memory"]["look-ups"], tiers["memory"]["hits"]) == ("12", "10")
    assert tiers["compiler"]["programs it gave"] == "2"
    # The wait of .cpu() comes after the step function returned: it is the fence's.
    assert [rows for rows in page.tables if rows[0][:2] == ("reason", "line")] == []


def test_charts_are_valid_and_nothing_is_fetched(tmp_path: Path) -> None:
    (path,) = html.write(load_run(write_capture(tmp_path / "run")), tmp_path / "out").files
    page = Page(path.read_text(encoding="utf-8"))
    charts = ["losses", "memory", "step-series", "timeline", "where-time-goes"]
    assert sorted(page.figures) == charts
    for name, figure in page.figures.items():
        assert f"chart-{name}" in page.ids
        black = json.loads(json.dumps(figure).replace(TEXT_COLOUR, "#000000"))
        go.Figure(data=black["data"], layout=black["layout"])  # raises on a wrong property
    assert [link for link in page.links if not link.startswith(("#", "data:"))] == []
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert {"img", "iframe", "object", "embed"}.isdisjoint(page.tags)
    assert len(page.ids) == len(set(page.ids))
    assert path.stat().st_size < 8e6


def test_user_text_is_shown_and_never_run(tmp_path: Path) -> None:
    stored = write_detailed_run(
        tmp_path / "run", why=f"why {HOSTILE}", warnings=(f"warning {HOSTILE}",)
    )
    (path,) = html.write(stored, tmp_path / "out").files
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.tags.count("script") == 3  # plotly, the figures, ours
    for words in ("why", "warning"):
        assert f"{words} {HOSTILE}" in page.text
    assert f"{HOSTILE} (Odd)" in page.text  # the module's name in a table
    assert re.search(r"<script>alert", text) is None


@pytest.mark.parametrize("steps", [True, False])
def test_a_run_that_failed_has_a_page_that_says_so(tmp_path: Path, steps: bool) -> None:
    changes: dict[str, Any] = {"status": "failed", "reason": "RuntimeError: <b>boom</b>"}
    if steps:
        stored = write_detailed_run(tmp_path / "run", {}, **changes)
    else:
        writer = RunWriter(tmp_path / "run")
        writer.finish(Run(plan=plan("run"), environment=None, **changes))
        stored = load_run(tmp_path / "run")
    exported = html.write(stored, tmp_path / "out")
    page = Page(exported.files[0].read_text(encoding="utf-8"))
    assert "RuntimeError: <b>boom</b>" in page.text
    if not steps:
        assert page.figures == {}
        assert "Not known:" in page.text
        assert any("not analysed" in note for note in exported.notes)


def test_a_page_that_reads_back_differently_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = write_detailed_run(tmp_path / "run")
    for old, new, said in (
        ("<td>160 us</td>", "<td>170 us</td>", "does not read back"),
        ('"timeline"', '"time"', "data of the charts"),
        ("</thead>", "</thead></table><table>", "tables were written"),
    ):
        monkeypatch.setattr(
            html, "render", lambda *given, old=old, new=new: render(*given).replace(old, new, 1)
        )
        with pytest.raises(ExportMismatch, match=said):
            html.write(stored, tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []
    monkeypatch.setattr(html, "render", render)

    class Shorter(RunPage):
        """A page that lost a step on the way from the run to its charts."""

        @property
        def figure_data(self) -> dict[str, dict[str, Any]]:
            data: dict[str, dict[str, Any]] = json.loads(json.dumps(super().figure_data))
            data["step-series"]["data"][0]["y"] = []
            return data

    monkeypatch.setattr(html, "RunPage", Shorter)
    with pytest.raises(ExportMismatch, match="the run has 3 steps"):
        html.write(stored, tmp_path / "out")
