"""report.html: self-contained, safe with user text, light on the screen, valid for plotly."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from tests.stored_ladders import (
    FACTS,
    Timeline,
    partial_ladder,
    two_rungs,
    warm_timeline,
    write_ladder_of,
    write_run,
)
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.export import html
from tpu_perf.export.report.figures import MAX_POINTS, TEXT_COLOUR, thin
from tpu_perf.export.report.series_charts import log_ticks


class Page(HTMLParser):
    """Elements, links and text of a page, and the JSON of its figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.figures: dict[str, Any] = {}
        self._script = ""
        self._script_id: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._script, self._script_id = "", dict(attrs).get("id")
        for name, value in attrs:
            if name in ("src", "href", "action", "data", "srcset") and value is not None:
                self.links.append(value)
            if name == "id" and value is not None:
                self.ids.append(value)

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.text += data
        else:
            self._script += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script" and self._script_id == "figures":
            self.figures = json.loads(self._script)


def page_of(directory: Path) -> Page:
    return Page(html.write(directory).read_text(encoding="utf-8"))


def test_every_chart_is_there_and_valid(tmp_path: Path) -> None:
    complete(two_rungs(tmp_path))
    page = page_of(tmp_path)
    charts = ["step-time", "mfu", "waterfall", "where-time-goes", "losses", "memory", "step-series"]
    assert list(page.figures) == sorted(charts)
    for name, figure in page.figures.items():
        assert f"chart-{name}" in page.ids
        black = json.loads(json.dumps(figure).replace(TEXT_COLOUR, "#000000"))
        go.Figure(data=black["data"], layout=black["layout"])  # raises on a wrong property


def test_numbers_of_the_charts(tmp_path: Path) -> None:
    complete(two_rungs(tmp_path))
    figures = page_of(tmp_path).figures
    assert figures["step-time"]["data"][0]["x"] == pytest.approx([100, 40])
    assert figures["mfu"]["data"][0]["x"] == pytest.approx([10, 25])
    assert figures["waterfall"]["data"][0]["y"] == pytest.approx([100, -60])
    parts = {trace["name"]: trace["x"] for trace in figures["where-time-goes"]["data"]}
    # strict: 4 ops of 0.5 ms, each holding an enqueue of 0.2 ms; whole_step: one
    assert parts["op dispatch"] == pytest.approx([1.2, 0.3])
    assert parts["XLA enqueue"] == pytest.approx([0.8, 0.2])
    assert parts["waiting at the fence"] == pytest.approx([5, 5])
    assert sum(trace[0] for trace in parts.values()) == pytest.approx(100)
    reference = figures["losses"]["data"][-1]
    assert reference["y"] == [5.0, 4.5, 4.001]


def test_nothing_is_fetched_from_elsewhere(tmp_path: Path) -> None:
    complete(two_rungs(tmp_path))
    page = page_of(tmp_path)
    outside = [link for link in page.links if not link.startswith(("#", "data:"))]
    assert outside == []
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert {"img", "iframe", "object", "embed"}.isdisjoint(page.tags)
    assert (tmp_path / "report.html").stat().st_size < 8e6


def test_user_text_is_shown_and_never_run(tmp_path: Path) -> None:
    complete(partial_ladder(tmp_path))
    page = page_of(tmp_path)
    assert page.tags.count("script") == 3  # plotly, the figures, ours
    assert "<script>alert(1)</script>[bold]" in page.text
    assert "b" not in page.tags
    assert "RuntimeError: [red]no lowering for <b>aten::foo</b>" in page.text
    names = page.figures["step-time"]["data"][0]["y"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[bold]" in names


def test_a_ladder_in_which_nothing_ran_still_has_a_report(tmp_path: Path) -> None:
    write_ladder_of(tmp_path, ["strict", "compile"], finished_at=None)
    page = page_of(tmp_path)
    assert page.figures == {}
    assert "not finished" in page.text
    assert page.text.count("not run: the ladder ended before this rung left a run directory") == 2


def test_large_runs_are_thinned_for_the_screen(tmp_path: Path) -> None:
    timeline = Timeline(ops=20_000, op_ms=0.001, executes=0, live_bytes=8)
    step = timeline.step("timed", 0, 21_000.0)
    timeline.events["memory"] = [
        (start, 1, number, step) for number, (start, *_) in enumerate(timeline.events["dispatch"])
    ]
    write_ladder_of(tmp_path, ["strict"])
    write_run(tmp_path / "rungs/strict", timeline)
    complete(tmp_path)
    points = [
        len(trace["x"]) for figure in page_of(tmp_path).figures.values() for trace in figure["data"]
    ]
    assert max(points) <= MAX_POINTS


def test_thinning_keeps_peaks_and_order() -> None:
    x = np.arange(100_000, dtype=np.float64)
    y = np.zeros(100_000)
    y[77_777] = 5.0
    y[12_345] = -3.0
    few_x, few_y = thin(x, y)
    assert len(few_x) <= MAX_POINTS
    assert (max(few_y), min(few_y)) == (5.0, -3.0)
    assert few_x == sorted(few_x)
    assert few_x[few_y.index(5.0)] == 77_777


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.2, 5.0, [0.2, 0.5, 1, 2, 5]),
        (0.1, 1000.0, [0.1, 1, 10, 100, 1000]),
        (0.12, 0.16, [0.12, 0.16]),
    ],
)
def test_log_ticks(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high) == pytest.approx(ticks)


def test_bare_numbers_do_not_appear_in_the_summary(tmp_path: Path) -> None:
    """Every number that is not missing carries the letter of its provenance."""
    two_rungs(tmp_path)
    facts = replace(FACTS, peak_provenance="assumed")
    write_run(tmp_path / "rungs/whole_step", warm_timeline(40.0), facts=facts)
    complete(tmp_path)
    text = html.write(tmp_path).read_text(encoding="utf-8")
    assert '25.0 %<abbr title="assumed">a</abbr>' in text
    values = text.count('<span class="value">')
    assert values >= 2 * 9
    assert len(re.findall(r'<span class="value">[^<]+<abbr title="[a-z]+', text)) == values
