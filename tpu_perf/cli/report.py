"""`tpu-perf report LADDER`: the charts and the report as files, without a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

PICTURES = "pictures"  # below the ladder directory


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="LADDER", help="A ladder directory.", show_default=False)
    ],
    png: Annotated[bool, typer.Option("--png", help="Write each chart as PNG.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Write each chart as SVG.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Write report.html (the default).")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write. [default: LADDER, charts in LADDER/pictures]"),
    ] = None,
) -> None:
    """Write a ladder's charts as PNG or SVG for a slide or a pull request, or its report."""
    from tpu_perf.analysis.ladder_metrics import completed
    from tpu_perf.errors import StoredRunError
    from tpu_perf.export import html as html_report
    from tpu_perf.export.report.pictures import Format, write_pictures

    _, rungs = completed(directory)
    if html or not (png or svg):
        typer.echo(f"wrote {html_report.write(directory, out)}")
    asked = [f for f, wanted in zip(get_args(Format), (png, svg), strict=True) if wanted]
    figures = html_report.charts(rungs) if asked else []
    if asked and not figures:
        raise StoredRunError(f"{directory} has no measured rung, so there is nothing to draw")
    for format in asked:
        for path in write_pictures(figures, out or directory / PICTURES, format):
            typer.echo(f"wrote {path}")
