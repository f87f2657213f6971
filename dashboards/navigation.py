"""The pages of the dashboard and what all of them share: which DIR, links, style."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import streamlit as st

from tpu_perf.errors import TpuPerfError

from . import compare, engines, history, ladder, ladders, run, rung, text
from .directory import Directory

#: URL path -> title and page. The first is the one that opens. They have no icons, which browsers
#: would fetch from Google.
PAGES: dict[str, tuple[str, Callable[[Directory], None]]] = {
    "ladders": ("Ladders", ladders.show),
    "ladder": ("Ladder", ladder.show),
    "rung": ("Rung", rung.show),
    "compare": ("Compare", compare.show),
    "engines": ("Engines", engines.show),
    "history": ("History", history.show),
    "run": ("Run", run.show),
}
NO_RUN = "--no-run"


def main(arguments: Sequence[str]) -> None:
    """Show the page that the URL names. `arguments`: DIR, and `--no-run` to leave out the page
    that starts ladders."""
    directory = Directory(Path(next((a for a in arguments if not a.startswith("--")), ".")))
    pages = [
        st.Page(guarded(show, directory), title=title, url_path=path, default=path == "ladders")
        for path, (title, show) in PAGES.items()
        if path != "run" or NO_RUN not in arguments
    ]
    st.set_page_config(layout="wide")
    chosen = st.navigation(pages, position="top")
    st.html(text.STYLE)
    chosen.run()


def guarded(show: Callable[[Directory], None], directory: Directory) -> Callable[[], None]:
    """A page that says what is wrong with what it was asked to show, instead of failing."""

    def page() -> None:
        try:
            show(directory)
        except TpuPerfError as error:
            text.problem(error)

    return page
