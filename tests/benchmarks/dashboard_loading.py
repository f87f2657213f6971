"""How long pages of the dashboard take to load for a run of a million events, in Chromium.

`python -m tests.benchmarks.dashboard_loading` starts a dashboard over a generated run and opens
each section of its page: first with nothing of the run in the server's memory, then again. Wall
time until the script has ended and every chart is drawn, and bytes received. The browser has the
app itself from one page before, except in the first row.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM, FLAGS
from tests.browser.shown import Watched, serving, watched
from tests.large_runs import write_large_run
from tests.stored_ladders import write_ladder_of
from tpu_perf.analysis.ladder_metrics import complete

EVENTS = 1_000_000
SECTIONS = ("Steps", "Timeline", "Modules and ops", "Roofline", "Memory", "Programs and cache")
RUN = {"run": "million/rungs/strict"}


def main() -> None:
    assert CHROMIUM is not None, "this needs Debian's chromium"
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        directory = Path(folder)
        write_ladder_of(directory / "runs/million", ["strict"], name="million")
        write_large_run(directory / "runs/million/rungs/strict", EVENTS)
        complete(directory / "runs/million")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        print(f"{'page':<40} {'first':>8} {'again':>8} {'MB':>6}")
        for section in SECTIONS:  # each with a server that knows nothing of the run yet
            with serving(directory) as dashboard, watched(browser) as seen:
                time.sleep(8)  # what a user takes to open a browser; the server loads meanwhile
                if section == SECTIONS[0]:
                    _row("Ladders, browser without the app", seen, dashboard.address())
                else:
                    seen.open(dashboard.address())
                _row(section, seen, dashboard.address("rung", **RUN, section=section))
        browser.close()


def _row(name: str, seen: Watched, address: str) -> None:
    seconds = []
    received = 0
    for _ in range(2):
        begun = time.perf_counter()
        seen.open(address)
        seconds.append(time.perf_counter() - begun)
        received = max(received, seen.received_bytes)
    print(
        f"{name:<40} {seconds[0]:>6.2f} s {seconds[1]:>6.2f} s {received / 1e6:>6.2f}", flush=True
    )


if __name__ == "__main__":
    main()
