"""`tpu-perf history DIR`: one metric over time, for every rung of every ladder below DIR."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def history(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where ladders and runs lie.")
    ] = Path("runs"),
    metric: Annotated[str, typer.Option(help="Which metric.")] = "step_time",
    ladder: Annotated[
        str | None, typer.Option(help="Only ladders of this name.", show_default=False)
    ] = None,
    rung: Annotated[str | None, typer.Option(help="Only this rung.", show_default=False)] = None,
    last: Annotated[int, typer.Option(min=0, help="Runs to list of each; 0 for all.")] = 10,
    chart: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw it: a .png, .svg or .html file."),
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the index of DIR anew.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as one JSON document.")
    ] = False,
) -> None:
    """List and chart a metric over time, with commit and changes of the environment."""
    from tpu_perf.analysis.history import history as read_history
    from tpu_perf.export.history_lines import history_document, history_lines

    found = read_history(directory, metric, ladder=ladder, rung=rung, rebuild=rebuild)
    if as_json:
        print(json.dumps(history_document(found)))
    else:
        print("\n".join(history_lines(found, last)))
    if chart is not None:
        from tpu_perf.export.history_chart import write_chart

        write_chart(found, chart)
        typer.echo(f"wrote {chart}", err=True)
