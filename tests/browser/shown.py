"""What the browser tests look at: runs of every kind, and a page with a watch on its network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, expect

from tests.integration.ladder_commands import write_ladder
from tests.large_runs import write_large_run
from tests.stored_captures import write_capture
from tests.stored_ladders import (
    ENVIRONMENT,
    partial_ladder,
    plan,
    two_rungs,
    warm_timeline,
    write_ladder_of,
    write_run,
)
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.record.run import Run

#: Markdown, HTML and plotly's own tags, each of which would fetch or run something if it could.
EVIL = (
    "<img src=x onerror=alert(1)><script>alert(2)</script>**bold** ![i](http://evil.example/i.png)"
    ' [l](http://evil.example) :red[r] <a href="javascript:alert(3)">a</a>'
)
WAIT_MS = 60_000
#: What Streamlit asks under a page's own path before it finds its server at the root.
PROBED = re.compile(r"/_stcore/(health|host-config)$")


def shown_runs(directory: Path) -> None:
    """Fill DIR: a good ladder, one of every fate, a capture, a million events, hostile text."""
    complete(two_rungs(directory / "good"))
    partial_ladder(directory / "broken")
    write_capture(directory / "capture")
    write_ladder_of(directory / "million", ["strict"], name="million")
    write_large_run(directory / "million/rungs/strict", 1_000_000)
    complete(directory / "million")
    names = [EVIL, "strict"]
    paths = {EVIL: "rungs/evil", "strict": "rungs/strict"}
    write_ladder_of(directory / "hostile", names, paths=paths, name=EVIL, warnings=(EVIL,))
    run = Run(plan=plan(EVIL), environment=replace(ENVIRONMENT, hostname=EVIL, device_kind=EVIL),
              status="ok", warnings=(EVIL,), why=EVIL)  # fmt: skip
    write_run(directory / "hostile/rungs/evil", _evil_timeline(), run=run)
    write_run(directory / "hostile/rungs/strict", warm_timeline(20.0))
    complete(directory / "hostile")
    (directory / "half.partial").mkdir()
    (directory / "out").symlink_to("/etc")
    write_ladder(directory.parent, "cpu_eager")


def _evil_timeline() -> Any:
    timeline = warm_timeline(10.0)
    timeline.events["dispatch"] = [
        (start, end, EVIL, program, step)
        for start, end, _, program, step in timeline.events["dispatch"]
    ]
    return timeline


@dataclass(frozen=True, slots=True)
class Shown:
    """A running dashboard: where it answers, and the directory it was started in."""

    url: str
    directory: Path

    def address(self, page: str = "", **parameters: str) -> str:
        return f"{self.url}/{page}" + (f"?{urlencode(parameters)}" if parameters else "")


@contextmanager
def serving(directory: Path) -> Iterator[Shown]:
    """`tpu-perf dashboard runs` in this directory, until the block ends."""
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


@dataclass(slots=True)
class Watched:
    """A page with what it asked for, received and complained of."""

    page: Page
    foreign: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    received_bytes: int = 0

    def open(self, address: str) -> Page:
        """Go there and wait until the page has drawn everything; forget what was before."""
        self.foreign, self.complaints, self.dialogs, self.received_bytes = [], [], [], 0
        self.page.goto(address)
        self.settled()
        return self.page

    def settled(self) -> None:
        """Wait until Streamlit's script has ended and every chart is there."""
        app = self.page.locator("[data-testid=stApp]")
        expect(app).to_have_attribute("data-test-script-state", "notRunning")
        expect(self.page.locator("h1").first).to_be_visible(timeout=WAIT_MS)
        expect(self.page.locator("[data-testid=stSkeleton]")).to_have_count(0)
        # Asked of all at once: charts of the script before may still go while one looks.
        undrawn = self.page.locator("[data-testid=stPlotlyChart]:not(:has(.main-svg))")
        expect(undrawn).to_have_count(0, timeout=WAIT_MS)

    def calm(self) -> None:
        """Nothing from outside, no complaint, no script of a run's own."""
        assert not self.foreign
        assert not self.complaints
        assert not self.dialogs


@contextmanager
def watched(
    browser: Browser, theme: Literal["light", "dark"] = "light", width: int = 1280
) -> Iterator[Watched]:
    """A fresh browser profile whose network and console are watched."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
    )
    page = context.new_page()
    seen = Watched(page)
    network = context.new_cdp_session(page)
    network.send("Network.enable")

    def count(event: dict[str, Any]) -> None:
        seen.received_bytes += int(event["dataLength"])

    def count_frame(event: dict[str, Any]) -> None:
        payload = event["response"]["payloadData"]
        seen.received_bytes += len(payload) * 3 // 4  # binary frames come as base64

    def requested(url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")):
            seen.foreign.append(url)

    network.on("Network.dataReceived", count)
    network.on("Network.webSocketFrameReceived", count_frame)
    page.on("request", lambda request: requested(request.url))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            seen.complaints.append(message.text)
            if message.type == "error" and not PROBED.search(message.location["url"])
            else None
        ),
    )

    def dismissed(dialog: Any) -> None:
        seen.dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismissed)
    page.set_default_timeout(WAIT_MS)
    try:
        yield seen
    finally:
        context.close()
