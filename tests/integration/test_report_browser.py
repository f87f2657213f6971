"""report.html in a real browser: charts are drawn, nothing goes wrong, user text stays text."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.stored_ladders import partial_ladder
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.export import html

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


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_report_in_a_browser(tmp_path: Path) -> None:
    complete(partial_ladder(tmp_path / "ladder"))
    report = html.write(tmp_path / "ladder")
    result = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", report.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in result.stderr  # no error, no blocked request, no alert
    drawn = result.stdout.split('<script type="application/json"')[0].count('class="main-svg"')
    assert drawn >= 6
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[bold]" in result.stdout
