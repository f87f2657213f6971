"""`tpu-perf analyze RUN`: where a run's steady steps spend time, FLOPs, bytes and memory."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Grouping(StrEnum):
    op = "op"
    module = "module"
    line = "line"
    category = "category"
    program = "program"
    phase = "phase"


class Counting(StrEnum):
    causal = "causal"
    full = "full"


def analyze(
    directory: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run or ladder directory.", show_default=False),
    ],
    by: Annotated[Grouping, typer.Option(help="What the table groups by.")] = Grouping.op,
    top: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 15,
    rung: Annotated[
        str | None,
        typer.Option(help="Which rung of a ladder directory.", show_default=False),
    ] = None,
    attention: Annotated[
        Counting,
        typer.Option(help="Whether causal attention counts half its pairs or all of them."),
    ] = Counting.causal,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also show what is alive at the peak of memory.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as one JSON document.")
    ] = False,
) -> None:
    """Show a run's steady steps by op, module, line, category, program or phase."""
    from tpu_perf.analysis.run_analysis import analyse
    from tpu_perf.analysis.rung_record import stored_run

    analysis = analyse(stored_run(directory, rung), by.value, attention.value)
    if as_json:
        from tpu_perf.export.analysis_document import analysis_document

        print(json.dumps(analysis_document(analysis, top), indent=1))
        return
    from rich.console import Console

    from tpu_perf.export.analysis_terminal import render_analysis

    render_analysis(analysis, Console(), top, memory=memory)
