"""Debian's Chromium, driven by Playwright, and a dashboard to look at."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.shown import WAIT_MS, Shown, Watched, shown_runs, watched

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
    environment = {**os.environ, "TPU_PERF_AUTOLOAD": "0", "PYTHONUNBUFFERED": "1"}
    paths = (os.getcwd(), os.environ.get("PYTHONPATH"))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    server = subprocess.Popen(
        [sys.executable, "-m", "tpu_perf", "dashboard", "runs", "--port", "0"],
        cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        heard = ""
        for line in server.stdout:
            heard += line
            if "server started" in line:
                break
        address = re.search(r"http://127\.0\.0\.1:\d+", heard)
        assert address, heard
        yield Shown(url=address.group(), directory=directory)
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture(scope="session")
def light(browser: Browser) -> Iterator[Watched]:
    """A page that keeps what it has loaded of the app, as a user's does."""
    with watched(browser, "light") as seen:
        yield seen


@pytest.fixture(scope="session")
def dark(browser: Browser) -> Iterator[Watched]:
    with watched(browser, "dark") as seen:
        yield seen
