"""Text of runs as text: titles, messages and tables as HTML of our own, in which it is escaped.

Not as Markdown, which makes links of bare addresses however they are escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal
from urllib.parse import urlencode

import streamlit as st

from tpu_perf.errors import TpuPerfError
from tpu_perf.export.report.rung_tables import Cell

Kind = Literal["info", "success", "warning", "error"]
#: How a message begins, so that its colour is not all that tells them apart.
WORDS: dict[Kind, str] = {"info": "", "success": "Done:", "warning": "Note:", "error": "Problem:"}
#: The longest text of a run that a page shows in one place.
MAX_LENGTH = 2_000

STYLE = """
<style>
.tp { font-size: 0.9rem; }
.tp table { border-collapse: collapse; min-width: 60%; }
.tp caption { text-align: left; font-weight: 600; padding: 0.2rem 0; }
.tp th, .tp td { padding: 0.3rem 0.9rem 0.3rem 0; text-align: right; vertical-align: top;
  border-bottom: 1px solid color-mix(in srgb, currentColor 14%, transparent);
  font-variant-numeric: tabular-nums; }
.tp thead th { font-weight: 600; border-bottom-width: 2px; white-space: nowrap; }
.tp tbody th { font-weight: 400; }
.tp .left, .tp tbody th { text-align: left; }
.tp td.left, .tp tbody th { overflow-wrap: anywhere; min-width: 6rem; }
.tp tbody th { min-width: 9rem; }
.tp .interval { display: block; font-size: 0.78em; opacity: 0.75; white-space: nowrap; }
.tp .value { white-space: nowrap; }
.tp abbr { text-decoration: none; opacity: 0.75; font-size: 0.8em; margin-left: 0.25em;
  cursor: help; }
.tp abbr.missing { font-size: 1em; text-decoration: underline dotted; }
.tp a { color: inherit; text-decoration: underline; text-underline-offset: 2px; }
.tp .scroll { overflow-x: auto; }
.tp a:focus-visible, .tp .scroll:focus-visible { outline: 2px solid currentColor;
  outline-offset: 2px; }
.tp dt { font-weight: 600; overflow-wrap: anywhere; }
.tp dd { margin: 0 0 0.6rem 0; overflow-wrap: anywhere; }
.tp.muted, .tp .muted { opacity: 0.75; }
.tp p { margin: 0.2rem 0; overflow-wrap: anywhere; }
.tp-title { font-weight: 700; margin: 0; padding: 0; overflow-wrap: anywhere; }
h1.tp-title { font-size: 2rem; } h2.tp-title { font-size: 1.4rem; }
.tp.message { padding: 0.6rem 0.9rem; border-radius: 0.4rem; border-left: 0.3rem solid;
  border-color: var(--accent); background: color-mix(in srgb, var(--accent) 13%, transparent); }
.tp.info { --accent: #0072B2; } .tp.success { --accent: #009E73; }
.tp.warning { --accent: #E69F00; } .tp.error { --accent: #D55E00; }
</style>
"""


def clipped(text: object) -> str:
    """At most MAX_LENGTH characters, without what a screen cannot show."""
    shown = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}"
                    for c in str(text)[: MAX_LENGTH + 1])  # fmt: skip
    return shown if len(shown) <= MAX_LENGTH else shown[:MAX_LENGTH] + "..."


def escaped(text: object) -> str:
    return html.escape(clipped(text))


def url(page: str, **parameters: str | int | float | None) -> str:
    """A link to a page of this app with its state; what is None stays out."""
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{page}?{urlencode(given)}" if given else page


def link(text: object, page: str, **parameters: str | int | float | None) -> str:
    """The same as an HTML anchor, for cells of `table` that are marked as HTML."""
    return f'<a href="{html.escape(url(page, **parameters))}">{escaped(text)}</a>'


class Html(str):
    """Markup that a page made itself, not to be escaped again."""


def number(cell: Cell) -> Html:
    """A figure with its interval and the letter of its provenance, or why it is missing."""
    if not cell.provenance:
        reason = escaped(cell.reason or "unknown")
        return Html(f'<abbr class="missing" title="{reason}" tabindex="0">{cell.text}</abbr>')
    title = escaped(f"{cell.provenance}: {cell.reason}" if cell.reason else cell.provenance)
    interval = f'<span class="interval">{escaped(cell.interval)}</span>' if cell.interval else ""
    return Html(
        f'<span class="value">{escaped(cell.text)}<abbr title="{title}">'
        f"{escaped(cell.provenance[0])}</abbr></span>{interval}"
    )


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    left: int = 1,
    words: Sequence[int] = (),
) -> None:
    """Show a table; the first `left` columns and those in `words` are set flush left. All but
    `Html` is escaped."""
    flush_left = {*range(left), *words}

    def cell(value: object, column: int) -> str:
        shown = value if isinstance(value, Html) else escaped(value)
        flush = ' class="left"' if column in flush_left else ""
        return (
            f'<th scope="row" class="left">{shown}</th>'
            if column == 0
            else f"<td{flush}>{shown}</td>"
        )

    titles = "".join(
        f'<th scope="col"{" class=left" * (column in flush_left)}>{escaped(title)}</th>'
        for column, title in enumerate(head)
    )
    body = "".join(
        f"<tr>{''.join(cell(value, column) for column, value in enumerate(row))}</tr>"
        for row in rows
    )
    st.html(
        f'<div class="tp"><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escaped(caption)}"><table><caption>{escaped(caption)}</caption>'
        f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div></div>"
    )


def terms(entries: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
    """Show names with sentences about them."""
    pairs = entries.items() if isinstance(entries, Mapping) else entries
    items = "".join(f"<dt>{escaped(term)}</dt><dd>{escaped(text)}</dd>" for term, text in pairs)
    st.html(f'<div class="tp"><dl>{items}</dl></div>')


def title(text: object, level: int = 1) -> None:
    """A heading that a run names; level 1 is that of the page."""
    st.html(f'<h{level} class="tp-title">{escaped(text)}</h{level}>')


def note(text: object) -> None:
    """A sentence in a smaller, paler type."""
    st.html(f'<p class="tp muted">{escaped(text)}</p>')


def message(kind: Kind, text: object, hint: object = "") -> None:
    """Something the reader must not miss, with what to do about it."""
    more = f'<p class="muted">{_lines(hint)}</p>' if hint else ""
    st.html(
        f'<div class="tp message {kind}" role="{"alert" if kind == "error" else "note"}">'
        f"<p><strong>{WORDS[kind]}</strong> {_lines(text)}</p>{more}</div>"
    )


def bullets(lines: Iterable[str]) -> None:
    items = "".join(f"<li>{escaped(line)}</li>" for line in lines)
    st.html(f'<div class="tp"><ul>{items}</ul></div>')


def problem(error: TpuPerfError) -> None:
    """Say what is wrong and what to do; the page goes on."""
    message("error", error.message, error.hint or "")


def _lines(text: object) -> str:
    return escaped(text).replace("\n", "<br>")


def provenance_legend() -> None:
    st.caption(
        "**m** measured, **d** derived, **p** predicted, **a** assumed; small figures are 95 % "
        "intervals; – is not known, and says why when pointed at"
    )
