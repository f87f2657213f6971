"""Debian's Chromium, driven by Playwright, and a dashboard to look at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.shown import WAIT_MS, Shown, Watched, serving, shown_runs, watched

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


expect.set_options(timeout=WAIT_MS)  # a busy machine is slow, not wrong


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """`tpu-perf dashboard` over the runs of `shown_runs`, until the session ends."""
    directory = tmp_path_factory.mktemp("dashboard")
    shown_runs(directory / "runs")
    with serving(directory) as shown:
        yield shown


@pytest.fixture(scope="session")
def light(browser: Browser) -> Iterator[Watched]:
    """A page that keeps what it has loaded of the app, as a user's does."""
    with watched(browser, "light") as seen:
        yield seen


@pytest.fixture(scope="session")
def dark(browser: Browser) -> Iterator[Watched]:
    with watched(browser, "dark") as seen:
        yield seen
