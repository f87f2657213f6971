"""The dashboard in a real browser: every page, every interaction, in both themes."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.shown import EVIL, WAIT_MS, Shown, Watched, watched

pytestmark = pytest.mark.slow

#: More is not to reach the browser for any page, the app itself included.
MAX_BYTES = 20_000_000
MILLION = {"run": "million/rungs/strict"}
PAGES: dict[str, tuple[str, dict[str, str]]] = {
    "ladders": ("", {}),
    "ladder": ("ladder", {"ladder": "good"}),
    "ladder, metrics": ("ladder", {"ladder": "good", "section": "All metrics"}),
    "ladder, numerics": ("ladder", {"ladder": "good", "section": "Numerics"}),
    "ladder, programs": ("ladder", {"ladder": "good", "section": "Programs"}),
    "ladder, conditions": ("ladder", {"ladder": "good", "section": "Conditions"}),
    "ladder of every fate": ("ladder", {"ladder": "broken"}),
    "steps": ("rung", MILLION),
    "timeline": ("rung", {**MILLION, "section": "Timeline"}),
    "whole timeline": ("rung", {**MILLION, "section": "Timeline", "from": "0", "to": "1e9"}),
    "modules": ("rung", {**MILLION, "section": "Modules and ops"}),
    "roofline": ("rung", {"run": "capture", "section": "Roofline"}),
    "memory": ("rung", {**MILLION, "section": "Memory"}),
    "cache": ("rung", {**MILLION, "section": "Programs and cache"}),
    "half-written": ("rung", {"run": "broken/rungs/debug"}),
    "unreadable": ("rung", {"run": "broken/rungs/torn"}),
    "compare": ("compare", {"base": "good/rungs/strict", "new": "good/rungs/whole_step"}),
    "history": ("history", {}),
    "run": ("run", {}),
}


def parameters(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_every_page(
    request: pytest.FixtureRequest, dashboard: Shown, name: str, theme: str
) -> None:
    seen: Watched = request.getfixturevalue(theme)
    path, state = PAGES[name]
    page = seen.open(dashboard.address(path, **state))
    seen.calm()
    assert "Traceback" not in page.inner_text("body")
    expect(page.locator("[data-testid=stException]")).to_have_count(0)
    # Nothing sticks out of 1280 pixels; wide tables scroll by themselves.
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    ground = page.evaluate(
        "getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor"
    )
    brightness = [int(part) for part in re.findall(r"\d+", ground)[:3]]
    assert (sum(brightness) > 600) == (theme == "light")


def test_a_million_events_stay_below_the_limit(browser: Browser, dashboard: Shown) -> None:
    """A browser that has nothing yet, the app itself included."""
    for section in ("Timeline", "Modules and ops"):
        with watched(browser) as seen:
            seen.open(dashboard.address("rung", **MILLION, section=section))
            assert 1_000_000 < seen.received_bytes < MAX_BYTES


def test_from_the_list_down_to_a_source_line(light: Watched, dashboard: Shown) -> None:
    seen = light
    page = seen.open(dashboard.address())
    page.get_by_label("Name").fill("milli")
    page.get_by_label("Name").press("Enter")
    expect(page.get_by_text("1 of ", exact=False).first).to_be_visible()
    seen.settled()
    assert parameters(page) == {"name": "milli"}
    page.get_by_role("link", name="million").click()
    expect(page.locator("h1", has_text="million")).to_be_visible()
    seen.settled()
    page.get_by_role("link", name="strict (baseline)").click()
    expect(page.locator("h1", has_text="strict")).to_be_visible()
    seen.settled()
    page.get_by_role("tab", name="Modules and ops").click()
    expect(page.get_by_text("layers.0.mlp (Mlp)").first).to_be_visible()
    expect(page.get_by_text("model.py:").first).to_be_visible()
    assert parameters(page) == {**MILLION, "section": "Modules and ops"}
    seen.calm()


def test_dragging_zooms_and_the_address_follows(light: Watched, dashboard: Shown) -> None:
    seen = light
    state = {**MILLION, "section": "Timeline", "from": "0", "to": "1000"}
    page = seen.open(dashboard.address("rung", **state))
    box = page.locator(".nsewdrag").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.25 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], middle, steps=8)
    page.mouse.up()
    page.wait_for_url(re.compile(r"from=2[45]\d\."))
    seen.settled()
    now = parameters(page)
    assert float(now["from"]) == pytest.approx(250, abs=10)
    assert float(now["to"]) == pytest.approx(750, abs=10)
    page.get_by_role("button", name="Whole run").click()
    page.wait_for_url(re.compile(r"from=0\.0"))
    seen.settled()
    page.go_back()
    seen.calm()


def test_a_shared_address_shows_the_same(browser: Browser, dashboard: Shown) -> None:
    state = {**MILLION, "section": "Timeline", "from": "100", "to": "150"}
    with watched(browser) as seen:
        page = seen.open(dashboard.address("rung", **state))
        page.get_by_role("button", name="Later").click()
        page.wait_for_url(re.compile(r"from=137\.5"))
        seen.settled()
        address, said = page.url, page.locator("table").last.inner_text()
    with watched(browser) as other:
        page = other.open(address)
        assert page.locator("table").last.inner_text() == said


def test_another_rung_is_one_choice_away(light: Watched, dashboard: Shown) -> None:
    seen = light
    page = seen.open(dashboard.address("rung", run="good/rungs/strict"))
    page.get_by_role("combobox").first.click()
    page.get_by_role("option", name="whole_step").click()
    expect(page.locator("h1", has_text="whole_step")).to_be_visible()
    assert parameters(page)["run"] == "good/rungs/whole_step"
    seen.calm()


def test_text_of_a_hostile_run_stays_text(light: Watched, dashboard: Shown) -> None:
    rung = {"run": "hostile/rungs/evil"}
    seen = light
    for path, state in (
        ("", {}),
        ("ladder", {"ladder": "hostile"}),
        ("ladder", {"ladder": "hostile", "section": "All metrics"}),
        ("ladder", {"ladder": "hostile", "section": "Conditions"}),
        *(("rung", {**rung, "section": section}) for section in (
            "Steps", "Timeline", "Modules and ops", "Roofline", "Memory", "Programs and cache"
        )),
        ("rung", {"run": EVIL}),
        ("compare", {"base": rung["run"], "new": "hostile/rungs/strict"}),
        ("history", {}),
        ("run", {"ladder": "hostile"}),
    ):  # fmt: skip
        page = seen.open(dashboard.address(path, **state))
        seen.calm()
        body = page.locator("[data-testid=stMain]")
        assert body.locator("script").count() == 0
        assert body.locator("img").count() == 0
        assert body.locator("a[href*='evil.example'], a[href^='javascript']").count() == 0
        assert body.locator("strong", has_text="bold").count() == 0
    page = seen.open(dashboard.address("ladder", ladder="hostile"))
    assert page.locator("h1").inner_text().startswith("<img src=x onerror=alert(1)><script>")


@pytest.mark.parametrize("path", ["out", "../", "/etc", "good/../../"])
def test_outside_is_refused(light: Watched, dashboard: Shown, path: str) -> None:
    seen = light
    page = seen.open(dashboard.address("rung", run=path))
    expect(page.get_by_text("does not exist").or_(page.get_by_text("outside"))).to_be_visible()
    seen.calm()


def test_the_keyboard_reaches_everything(light: Watched, dashboard: Shown) -> None:
    """Tab alone gets to the pages, the sections, the controls and the scrolling tables."""
    seen = light
    page = seen.open(dashboard.address("rung", **MILLION, section="Timeline"))
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "(document.activeElement.ariaLabel || document.activeElement.innerText || '')"
                ".trim()"
            )
        )
    words = " | ".join(reached)
    for name in ("Ladders", "History", "Timeline", "Zoom in", "Whole run", "Longest of"):
        assert name in words
    page.get_by_role("tab", name="Timeline").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Modules and ops")).to_have_attribute(
        "aria-selected", "true"
    )
    seen.settled()
    assert parameters(page)["section"] == "Modules and ops"


def test_a_ladder_is_started_watched_and_opened(light: Watched, dashboard: Shown) -> None:
    seen = light
    page = seen.open(dashboard.address("run"))
    page.get_by_label("Overrides, one path=value a line").fill("sampling.rounds=2")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("Running.")).to_be_visible()
    where = parameters(page)["ladder"]
    assert re.fullmatch(r"tiny-\d{8}T\d{6}Z", where)
    expect(page.get_by_text("The ladder ended well.")).to_be_visible(timeout=3 * WAIT_MS)
    ok = page.get_by_role("cell", name="ok", exact=True)
    expect(ok).to_have_count(1)  # the table of the script before may still go
    expect(ok.first).to_be_visible()
    assert (dashboard.directory / "runs" / where / "ladder.json").exists()
    page.get_by_role("link", name="Open this ladder").click()
    expect(page.locator("h1", has_text="tiny")).to_be_visible()
    seen.settled()
    seen.calm()


def test_a_ladder_can_be_stopped(light: Watched, dashboard: Shown) -> None:
    page = light.open(dashboard.address("run"))
    page.get_by_label("Overrides, one path=value a line").fill("sampling.rounds=5000")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("cell", name="under way")).to_be_visible(timeout=3 * WAIT_MS)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("The ladder was interrupted.")).to_be_visible()
    where = parameters(page)["ladder"]
    assert (dashboard.directory / "runs" / where / "ladder.json").exists()


def test_a_wrong_override_says_what_is_wrong(light: Watched, dashboard: Shown) -> None:
    seen = light
    page = seen.open(dashboard.address("run"))
    page.get_by_label("Overrides, one path=value a line").fill("sampling.round=2")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("an override is wrong")).to_be_visible()
    expect(page.get_by_text("sampling.round", exact=False).last).to_be_visible()
