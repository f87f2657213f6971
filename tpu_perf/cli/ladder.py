"""`tpu-perf ladder FILE`: run a ladder, then show and store what was found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpu_perf.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from tpu_perf.ladder.directory import LadderDirectory

_FAILED = ("failed", "does_not_fit", "timeout")


def ladder(
    file: Annotated[Path, typer.Argument(help="The ladder file (YAML).", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change a value of the file, e.g. sampling.rounds=3.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="RUNG,...", help="Run only these rungs.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="RUNG,...", help="Leave these rungs out.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Engine of every rung that names none: xla (ours) or torch_tpu (Google's).",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Ladder directory; by default runs/<name>-<time>.", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Run only what has no result yet in --out.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as one JSON document.")
    ] = False,
) -> int:
    """Run a ladder: one job in several ways, measured against each other.

    Exit codes: 0 fine, 2 wrong ladder file or options, 3 a rung failed, 130 interrupted.
    """
    from tpu_perf.cli.progress import make_observer
    from tpu_perf.ladder.directory import create_directory, default_directory, resume_directory
    from tpu_perf.ladder.interpreter import interpreter_of
    from tpu_perf.ladder.plan import plan_ladder, read_ladder
    from tpu_perf.ladder.runner import LadderRunner

    chosen = [] if engine is None else [f"engine={engine}"]
    config = read_ladder(file, [*(overrides or []), *chosen])
    plans = plan_ladder(config, names_of(only), names_of(skip))
    for plan in plans:
        interpreter_of(plan)  # where one is missing, that is said before anything runs
    if resume:
        if out is None:
            raise ConfigError("--resume needs --out, the directory of the ladder to go on with")
        directory, plans = resume_directory(out, config, plans)
    else:
        directory = create_directory(out or default_directory(config), config, plans)
    interrupted = False
    if plans:
        with make_observer([plan.rung for plan in plans], directory.path) as observer:
            try:
                LadderRunner(directory, plans, observer).run()
            except KeyboardInterrupt:
                interrupted = True
    else:
        print("every rung has a result already; nothing to run", file=sys.stderr)
    return _report(directory, as_json, interrupted)


def names_of(options: list[str] | None) -> list[str]:
    """`--only a,b --only c` as [a, b, c]."""
    return [name.strip() for text in options or [] for name in text.split(",") if name.strip()]


def _report(directory: LadderDirectory, as_json: bool, interrupted: bool) -> int:
    from rich.console import Console

    from tpu_perf.analysis.ladder_metrics import complete
    from tpu_perf.cli.main import INTERRUPTED
    from tpu_perf.export import html, markdown
    from tpu_perf.export.json_document import ladder_document
    from tpu_perf.export.terminal import render_ladder

    complete(directory.path)
    html.write(directory.path)
    markdown.write(directory.path)
    if as_json:
        print(json.dumps(ladder_document(directory.path), indent=1))
    else:
        render_ladder(directory.path, Console())
    if interrupted:
        print(
            f"interrupted; go on with --resume --out {directory.path}", file=sys.stderr, flush=True
        )
        return INTERRUPTED
    failed = [name for name, status in directory.statuses().items() if status in _FAILED]
    return ExitCode.RUNG_FAILED if failed else ExitCode.OK
