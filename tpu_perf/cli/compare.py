"""`tpu-perf compare A B`: what changed between two ladders or runs, and whether it is noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

BASE = Annotated[
    Path, typer.Argument(metavar="A", help="A ladder or run directory.", show_default=False)
]


def compare(
    base: BASE,
    new: Annotated[
        Path, typer.Argument(metavar="B", help="What to set against it.", show_default=False)
    ],
    rung: Annotated[
        list[str] | None, typer.Option(metavar="RUNG,...", help="Only these rungs.")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Ops and modules that moved, a rung.")] = 8,
    force: Annotated[
        bool, typer.Option("--force", help="Compare what differs in chip, precision, batch...")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as one JSON document.")
    ] = False,
) -> None:
    """Compare two ladders rung by rung, or two runs; B relative to A.

    Refuses (exit code 2) what differs in chip, precision, batch, workload or versions.
    """
    from tpu_perf.analysis.ladder_comparison import compare as compare_directories
    from tpu_perf.cli.ladder import names_of

    found = compare_directories(base, new, rungs=names_of(rung), force=force)
    if as_json:
        from tpu_perf.export.comparison.document import comparison_document

        print(json.dumps(comparison_document(found), indent=1))
    elif markdown:
        from tpu_perf.export.comparison.markdown import comparison_markdown

        print(comparison_markdown(found, top), end="")
    else:
        from rich.console import Console

        from tpu_perf.export.comparison.terminal import render_comparison

        render_comparison(found, Console(), top)
