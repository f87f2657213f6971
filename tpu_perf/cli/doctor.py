"""`tpu-perf doctor`: what this installation can and cannot do."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from tpu_perf.errors import ConfigError, ExitCode

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the checks as one JSON document.")
    ] = False,
    build: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="First make the environment of an engine that needs its own: torch_tpu.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Check the installation. Exit code 4 if something stands in the way."""
    from tpu_perf.ladder.checks import run_checks

    if build is not None:
        _build(build)

    checks = run_checks()
    if as_json:
        rows = [{"name": c.name, "verdict": c.verdict, "finding": c.finding} for c in checks]
        print(json.dumps({"schema_version": 1, "checks": rows}, indent=1))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for title in ("check", "", "finding"):
            table.add_column(title, overflow="fold")
        for check in checks:
            style = _STYLES[check.verdict]
            table.add_row(check.name, f"[{style}]{check.verdict}[/]", check.finding)
        Console().print(table)
    failed = any(check.verdict == "fail" for check in checks)
    return ExitCode.ENVIRONMENT if failed else ExitCode.OK


def _build(engine: str) -> None:
    from tpu_perf.engines.torch_tpu.environment import build

    if engine != "torch_tpu":
        raise ConfigError(
            f"--build {engine}: only torch_tpu has an environment of its own",
            hint="the others run in this one",
        )
    build(lambda text: print(text, file=sys.stderr))
