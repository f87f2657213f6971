"""What all charts share: the figure type, colours that colour-blind people can tell apart."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tpu_perf.analysis.intervals import Samples

MAX_POINTS = 5_000

#: Okabe and Ito's palette; yellow last, since it is faint as a line on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
DASHES = ("solid", "dot", "dash")
GREY = "#8C8C8C"
#: Replaced by the page's text colour, in the light and in the dark theme.
TEXT_COLOUR = "currentColor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One chart: plotly's data and layout as plain dictionaries, and what it shows in words."""

    id: str
    title: str
    description: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int
    terms: dict[str, str] = field(default_factory=dict)  # words of the legend explained


def shown(text: str) -> str:
    """Text of the user as plotly shows it literally: its labels accept a few HTML tags."""
    return html.escape(text, quote=False)


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> str:
    """A line style that tells rungs apart once the colours are used up."""
    return DASHES[(index // len(COLOURS)) % len(DASHES)]


def layout(**changes: Any) -> dict[str, Any]:
    """The common layout; colours of text and grid are set by the page's script, by theme."""
    return {
        "margin": {"l": 70, "r": 24, "t": 36, "b": 56},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hoverlabel": {"namelength": -1},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        **changes,
    }


def time_unit(values: Sequence[float]) -> tuple[float, str]:
    """One unit for a whole axis of seconds: (factor to multiply with, its name)."""
    largest = max((abs(value) for value in values), default=0.0)
    if largest >= 1:
        return 1.0, "s"
    return (1e3, "ms") if largest >= 1e-3 else (1e6, "us")


def byte_unit(largest: float) -> tuple[float, str]:
    """One unit for a whole axis of bytes: (bytes per unit, its name)."""
    for scale, unit in ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if largest >= scale:
            return scale, unit
    return 1.0, "B"


def thin(x: Samples, y: Samples, limit: int = MAX_POINTS) -> tuple[list[float], list[float]]:
    """At most `limit` points for the screen, keeping each stretch's lowest and highest.

    Peaks survive, which a plain stride would lose. NaN has no lowest: series must not hold it.
    """
    if len(x) <= limit:
        return x.tolist(), y.tolist()
    keep: list[int] = []
    for stretch in np.array_split(np.arange(len(x)), limit // 2):
        extremes = {int(stretch[y[stretch].argmin()]), int(stretch[y[stretch].argmax()])}
        keep.extend(sorted(extremes))
    return x[keep].tolist(), y[keep].tolist()
