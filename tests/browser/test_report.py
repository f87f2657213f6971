"""Written pages in a real browser: charts are drawn, nothing goes wrong, user text stays text."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.shown import watched
from tests.stored_ladders import partial_ladder
from tests.stored_runs import HOSTILE, write_detailed_run
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.export import html
from tpu_perf.export.runs import html as run_html

pytestmark = pytest.mark.slow


def test_report_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    complete(partial_ladder(tmp_path / "ladder"))
    report = html.write(tmp_path / "ladder")
    with watched(browser) as seen:
        seen.page.goto(report.as_uri())
        charts = seen.page.locator(".chart")
        assert charts.count() >= 6
        for chart in charts.all():
            expect(chart.locator(".main-svg").first).to_be_attached()
        expect(seen.page.get_by_text("<script>alert(1)</script>[bold]").first).to_be_attached()
        assert not [url for url in seen.foreign if not url.startswith("file:")]
        assert not seen.complaints  # no error, no blocked request
        assert not seen.dialogs


def test_page_of_a_run_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    stored = write_detailed_run(tmp_path / "run", why=f"why {HOSTILE}")
    (page,) = run_html.write(stored, tmp_path / "out").files
    with watched(browser) as seen:
        seen.page.goto(page.as_uri())
        expect(seen.page.locator(".main-svg").first).to_be_attached()
        expect(seen.page.get_by_text("ops, backward").first).to_be_attached()  # a legend
        assert seen.page.locator(".js-plotly-plot").count() >= 2
        expect(seen.page.get_by_text("<script>alert(1)</script>").first).to_be_attached()
        assert not seen.complaints
        assert not seen.dialogs
