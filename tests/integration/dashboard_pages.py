"""Runs one page of the dashboard in Streamlit's own test harness."""

from __future__ import annotations

import html
import re
from pathlib import Path

from streamlit.testing.v1 import AppTest

TIMEOUT_S = 60


def _script(page: str, directory: str) -> None:
    from pathlib import Path

    from dashboards.directory import Directory
    from dashboards.navigation import PAGES, guarded

    guarded(PAGES[page][1], Directory(Path(directory)))()


def page(name: str, directory: Path, /, **parameters: str) -> AppTest:
    """The page as it first shows with these query parameters; it must not raise."""
    made = AppTest.from_function(_script, args=(name, str(directory)), default_timeout=TIMEOUT_S)
    for parameter, value in parameters.items():
        made.query_params[parameter] = value
    made.run()
    assert not made.exception, made.exception[0].stack_trace
    return made


def words(shown: AppTest) -> str:
    """All text of the page as a reader sees it: titles, messages, captions, tables and code."""
    found: list[str] = []
    for element in shown.main:
        body = getattr(getattr(element, "proto", None), "body", "")
        value = getattr(element, "value", "")
        if isinstance(body, str) and body.startswith("<"):
            found.append(html.unescape(re.sub(r"<[^>]*>", " ", body)))
        elif isinstance(value, str):
            found.append(value)
    return "\n".join(found)
