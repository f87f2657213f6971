"""`tpu-perf gate BASE NEW`: fails a CI job when a change made things slower."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


def gate(
    base: Annotated[
        Path, typer.Argument(metavar="BASE", help="A ladder or run directory.", show_default=False)
    ],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="What must not be slower.", show_default=False)
    ],
    max_regression: Annotated[
        str, typer.Option(metavar="SHARE", help="How much worse is allowed: 5% or 0.05.")
    ] = "5%",
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Metrics to judge. [default: step_time]"),
    ] = None,
    rung: Annotated[
        list[str] | None, typer.Option(metavar="RUNG,...", help="Only these rungs.")
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="One more ladder or run of the base; a regression must show against every one. "
            "Two or three cover what differs from launch to launch.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Judge what differs in chip, precision, batch...")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the Markdown summary.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as one JSON document.")
    ] = False,
) -> int:
    """Exit 1 if NEW is worse than BASE by more than the limit and by more than noise.

    Exit codes: 0 no regression shown, 1 regression, 2 wrong usage or not comparable, 3 a rung of
    BASE has no result in NEW. A Markdown summary is appended to $GITHUB_STEP_SUMMARY if that is
    set.
    """
    from tpu_perf.analysis.gate import gate as judge
    from tpu_perf.cli.ladder import names_of
    from tpu_perf.export.comparison.markdown import gate_markdown

    found = judge(
        [base, *(also or [])],
        new,
        limit=share_of(max_regression),
        metrics=names_of(metric) or ["step_time"],
        rungs=names_of(rung),
        force=force,
    )
    summary = os.environ.get(SUMMARY_VARIABLE)
    if summary:
        _append(Path(summary), gate_markdown(found))
    if as_json:
        from tpu_perf.export.comparison.document import gate_document

        print(json.dumps(gate_document(found), indent=1))
    elif markdown:
        print(gate_markdown(found), end="")
    else:
        from rich.console import Console

        from tpu_perf.export.comparison.terminal import render_gate

        render_gate(found, Console())
    return found.exit_code


def share_of(text: str) -> float:
    """`5%`, `5 %` or `0.05` as a fraction. Raises ConfigError for anything else."""
    from tpu_perf.errors import ConfigError

    number = text.strip().removesuffix("%").strip()
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigError(
            f"--max-regression {text!r} is no share", hint="write it as 5% or as 0.05"
        )
    return value


def _append(path: Path, text: str) -> None:
    from tpu_perf.errors import EnvironmentProblem

    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise EnvironmentProblem(f"${SUMMARY_VARIABLE} cannot be written: {error}") from None
