"""The pages in a real browser: charts are drawn, nothing goes wrong, user text stays text."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.stored_ladders import partial_ladder
from tests.stored_runs import HOSTILE, write_detailed_run
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.export import html
from tpu_perf.export.runs import html as run_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # the browser itself calls home otherwise
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
    "--window-size=1280,2000",
    "--dump-dom",
)


def in_browser(page: Path, profile: Path) -> str:
    """The page's document once its scripts ran; fails if the browser has anything to complain."""
    result = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in result.stderr  # no error, no blocked request, no alert
    return result.stdout


def drawn(document: str) -> int:
    """Charts that plotly drew."""
    return document.split('<script type="application/json"')[0].count('class="main-svg"')


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_report_in_a_browser(tmp_path: Path) -> None:
    complete(partial_ladder(tmp_path / "ladder"))
    document = in_browser(html.write(tmp_path / "ladder"), tmp_path / "profile")
    assert drawn(document) >= 6
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[bold]" in document


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_page_of_a_run_in_a_browser(tmp_path: Path) -> None:
    stored = write_detailed_run(tmp_path / "run", why=f"why {HOSTILE}")
    (page,) = run_html.write(stored, tmp_path / "out").files
    document = in_browser(page, tmp_path / "profile")
    assert drawn(document) >= 5
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in document
    assert "ops, backward" in document.split('<script type="application/json"')[0]  # a legend
