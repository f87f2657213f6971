"""The report's charts as PNG or SVG files, drawn by matplotlib: no browser is needed."""

from __future__ import annotations

import html
import io
import os
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tpu_perf.export.report.figures import GREY, TEXT_COLOUR, Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Format = Literal["png", "svg"]
WIDTH_PX = 900
DPI = 100  # of the layout; PNG files hold twice as many pixels
INK, GRID = "#1F2328", "#E3E6EA"
#: Room in px for the title, each line of the description, and the legend.
TITLE_PX, LINE_PX, LEGEND_PX, LEFT_PX, RIGHT_PX, BOTTOM_PX = 44, 19, 30, 130, 70, 64
TEXT_WIDTH = 118
_DASHES = {"solid": "-", "dot": ":", "dash": "--"}
_MARKERS = {
    "circle": "o", "circle-open": "o", "diamond": "D", "triangle-up": "^", "square": "s",
    "star": "*", "x-thin": "x",
}  # fmt: skip
_TAG = re.compile(r"</?b>")


def write_pictures(figures: Sequence[Figure], directory: Path, format: Format) -> list[Path]:
    """Write `<chart>.png` or `.svg` for each figure; existing files are replaced whole."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for figure in figures:
        path = directory / f"{figure.id}.{format}"
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(picture(figure, format))
        os.replace(temporary, path)
        paths.append(path)
    return paths


def picture(figure: Figure, format: Format) -> bytes:
    """The file of one chart, on white. The same chart gives the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    options: Any = {
        # Names of the user's are text, never formulas.
        "text.parse_math": False, "svg.hashsalt": "tpu_perf", "font.size": 9.5,
        "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
        "axes.edgecolor": GREY,
    }  # fmt: skip
    with matplotlib.rc_context(options):
        lines = textwrap.wrap(figure.description, TEXT_WIDTH)
        has_legend = any(trace.get("name") and _in_legend(trace) for trace in figure.data)
        top = TITLE_PX + LINE_PX * len(lines) + LEGEND_PX * has_legend
        height = figure.height + top
        canvas = Canvas(figsize=(WIDTH_PX / DPI, height / DPI), dpi=DPI, facecolor="white")
        canvas.text(12 / WIDTH_PX, 1 - 12 / height, figure.title, va="top", size=14, weight="bold")
        for number, line in enumerate(lines):
            at = 1 - (TITLE_PX - 4 + LINE_PX * number) / height
            canvas.text(12 / WIDTH_PX, at, line, va="top", color="#57606A")
        legend_at = top - LEGEND_PX if has_legend else None
        _Drawing(canvas, figure, top, height).draw(legend_at)
        out = io.BytesIO()
        stamp = {"Software": None} if format == "png" else {"Date": None, "Creator": None}
        canvas.savefig(out, format=format, dpi=2 * DPI, metadata=stamp)
    return out.getvalue()


def plain(text: str) -> str:
    """Text as plotly takes it, without its tags."""
    return html.unescape(_TAG.sub("", text).replace("<br>", "\n"))


def _in_legend(trace: dict[str, Any]) -> bool:
    return bool(trace.get("showlegend", True))


class _Drawing:
    """Draws plotly's traces, axes and annotations on a canvas, as far as the report uses them."""

    def __init__(self, canvas: Canvas, figure: Figure, top_px: int, height_px: int) -> None:
        self._canvas = canvas
        self._figure = figure
        self._box = (
            LEFT_PX / WIDTH_PX, BOTTOM_PX / height_px,
            1 - (LEFT_PX + RIGHT_PX) / WIDTH_PX, 1 - (top_px + BOTTOM_PX) / height_px,
        )  # fmt: skip
        self._height_px = height_px
        self._axes: dict[str, Axes] = {}
        self._stacked: dict[str, float] = {}

    def draw(self, legend_px: int | None) -> None:
        names: dict[str, Any] = {}
        for trace in self._figure.data:
            axes = self._of(str(trace.get("xaxis", "x")))
            drawn = getattr(self, f"_{trace['type']}")(axes, trace)
            if trace.get("name") and _in_legend(trace):
                names.setdefault(plain(trace["name"]), drawn)
        for suffix, axes in self._axes.items():
            self._finish(axes, suffix)
        for note in self._figure.layout.get("annotations", ()):
            self._annotation(note)
        if legend_px is not None:
            self._canvas.legend(
                list(names.values()), list(names), loc="upper left", frameon=False,
                bbox_to_anchor=(4 / WIDTH_PX, 1 - legend_px / self._height_px),
                ncols=min(6, len(names)), handlelength=1.6, columnspacing=1.4,
            )  # fmt: skip

    def _of(self, name: str) -> Axes:
        """The axes that plotly calls x, x2, ..., made when first needed."""
        suffix = name.removeprefix("x")
        if suffix not in self._axes:
            left, bottom, width, height = self._box
            across = self._layout("xaxis", suffix).get("domain", (0, 1))
            up = self._layout("yaxis", suffix).get("domain", (0, 1))
            axes = self._canvas.add_axes(
                (
                    left + across[0] * width, bottom + up[0] * height,
                    (across[1] - across[0]) * width, (up[1] - up[0]) * height,
                )
            )  # fmt: skip
            axes.set_axisbelow(True)
            axes.grid(color=GRID, linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
            self._axes[suffix] = axes
        return self._axes[suffix]

    def _layout(self, axis: str, suffix: str) -> dict[str, Any]:
        found: dict[str, Any] = self._figure.layout.get(f"{axis}{suffix}", {})
        return found

    def _bar(self, axes: Axes, trace: dict[str, Any]) -> Any:
        names, values = [plain(name) for name in trace["y"]], trace["x"]
        lefts = [self._stacked.get(name, 0.0) for name in names]
        if self._figure.layout.get("barmode") == "stack":
            for name, left, value in zip(names, lefts, values, strict=True):
                self._stacked[name] = left + value
        error = trace.get("error_x")
        marker = trace["marker"]
        return axes.barh(
            names, values, left=lefts, height=0.66, color=marker["color"],
            hatch="///" if marker.get("pattern", {}).get("shape") else None, edgecolor="white",
            xerr=None if error is None else [error["arrayminus"], error["array"]],
            ecolor="#57606A", capsize=4,
        )  # fmt: skip

    def _waterfall(self, axes: Axes, trace: dict[str, Any]) -> Any:
        names, level, bars = [plain(name) for name in trace["x"]], 0.0, None
        for name, kind, change in zip(names, trace["measure"], trace["y"], strict=True):
            side = "totals" if kind == "absolute" else ("decreasing", "increasing")[change > 0]
            bottom = 0.0 if kind == "absolute" else min(level, level + change)
            colour = trace[side]["marker"]["color"]
            bars = axes.bar([name], [abs(change)], bottom=[bottom], width=0.6, color=colour)
            level = change if kind == "absolute" else level + change
        axes.grid(visible=False, axis="x")
        return bars

    def _scatter(self, axes: Axes, trace: dict[str, Any]) -> Any:
        line, marker = trace.get("line", {}), trace.get("marker", {})
        mode = trace["mode"]
        colour = _ink(line.get("color") if "lines" in mode else marker.get("color"))
        symbol = marker.get("symbol", "circle")
        (drawn,) = axes.plot(
            trace["x"], trace["y"], color=colour,
            linestyle=_DASHES[line.get("dash", "solid")] if "lines" in mode else "none",
            linewidth=1.8, marker=_MARKERS[symbol] if "markers" in mode else None,
            markersize=0.72 * marker.get("size", 6), markeredgewidth=1.4,
            markerfacecolor="none" if symbol.endswith("-open") else colour,
            drawstyle="steps-post" if line.get("shape") == "hv" else "default",
        )  # fmt: skip
        error = trace.get("error_y")
        if error is not None:
            axes.errorbar(
                trace["x"], trace["y"], yerr=[error["arrayminus"], error["array"]],
                fmt="none", ecolor=colour, elinewidth=1, alpha=0.6,
            )  # fmt: skip
        return drawn

    def _finish(self, axes: Axes, suffix: str) -> None:
        """Scale, ticks and titles, after everything is drawn."""
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            told = self._layout(f"{name}axis", suffix)
            if told.get("type") == "log":
                getattr(axes, f"set_{name}scale")("log")
            if "range" in told:
                low, high = (10**v if told.get("type") == "log" else v for v in told["range"])
                getattr(axes, f"set_{name}lim")(low, high)
            elif told.get("rangemode") == "tozero":
                _from_zero(axes, name)
            if told.get("autorange") == "reversed":
                axes.invert_yaxis()
                axes.grid(visible=False, axis="y")
            if "tickvals" in told:
                axis.set_ticks(told["tickvals"], told["ticktext"])
                axis.set_ticks([], minor=True)
            if "title" in told:
                axis.set_label_text(plain(told["title"]["text"]))

    def _annotation(self, note: dict[str, Any]) -> None:
        place = str(note.get("xref", "x"))
        axes = self._of(place.removesuffix(" domain"))
        x, y, shift = note["x"], note["y"], note.get("xshift", 0)
        axes.annotate(
            plain(note["text"]),
            (plain(x) if isinstance(x, str) else x, plain(y) if isinstance(y, str) else y),
            xycoords="axes fraction" if place.endswith(" domain") else "data",
            xytext=(0.72 * shift, 3 if note.get("yanchor") == "bottom" else 0),
            textcoords="offset points",
            ha=note.get("xanchor", "center"),
            va=note.get("yanchor", "center"),
            weight="bold" if "<b>" in note["text"] else "normal",
            annotation_clip=False,
        )


def _ink(colour: str | None) -> str:
    return INK if colour in (None, TEXT_COLOUR) else str(colour)


def _from_zero(axes: Axes, name: str) -> None:
    getattr(axes, f"set_{name}lim")(0.0, getattr(axes, f"get_{name}lim")()[1])
