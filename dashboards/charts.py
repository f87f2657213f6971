"""Shows the report's figures in Streamlit: theme, words beside each, no calls home."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import streamlit as st

from tpu_perf.export.report.figures import TEXT_COLOUR, Figure

from . import text

#: Text colours that Streamlit's themes have; the browser says which theme it shows.
_TEXT = {"light": "#31333F", "dark": "#FAFAFA"}
CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "plotlyServerURL": "",
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "sendDataToCloud"],
}


def text_colour() -> str:
    return _TEXT.get(st.context.theme.type or "light", _TEXT["light"])


def show(figure: Figure | None, absent: str, *, heading: bool = True) -> None:
    """A chart under its title, with what it shows in words; `absent` where there is no data."""
    if figure is None:
        text.message("info", absent)
        return
    if heading:
        st.subheader(figure.title)
    text.note(figure.description)
    draw(figure)


@contextmanager
def fetched_ahead(*, grid: bool) -> Iterator[None]:
    """Meanwhile the browser fetches what draws charts, and grids if asked, which it else asks for
    only when the first of them is there. Nothing of this can be seen."""
    slot = st.empty()
    with slot.container(height=1, border=False, key="ahead"):
        nothing = {"data": [{"type": "scatter"}], "layout": {"height": 10}}
        st.plotly_chart(nothing, key="chart-ahead", config=CONFIG, alt="nothing yet")
        if grid:
            st.dataframe([], key="grid-ahead", height=1)
    yield
    slot.empty()


def draw(figure: Figure, **options: Any) -> Any:
    """The chart alone; `options` go to `st.plotly_chart`."""
    document = {"data": figure.data, "layout": {**figure.layout, "height": figure.height}}
    themed = json.loads(json.dumps(document, default=str).replace(TEXT_COLOUR, text_colour()))
    return st.plotly_chart(
        themed,
        key=options.pop("key", f"chart-{figure.id}"),
        alt=f"{figure.title}. {figure.description}",
        config=options.pop("config", CONFIG),
        **options,
    )
