"""The entry point: collects the commands, and turns errors into messages and exit codes.

Commands import what they need inside their functions: `show` must start without torch or jax.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from typing import Annotated

import typer

import tpu_perf
from tpu_perf.cli import (
    analyze,
    cache,
    compare,
    dashboard,
    doctor,
    export,
    gate,
    history,
    import_capture,
    ladder,
    profile,
    report,
    schema,
    show,
    xprof,
)
from tpu_perf.errors import ExitCode, TpuPerfError

INTERRUPTED = 130  # what shells expect of a command that Ctrl-C ended

#: What wrong arguments raise. Typer takes it from click, or since it has its own copy from there.
_USAGE_ERROR: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)

app = typer.Typer(
    name="tpu-perf",
    help="Measure a ladder of ways to run one PyTorch job on TPU, and say what limits each.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("ladder")(ladder.ladder)
app.command(
    "profile",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)(profile.profile)
app.command("show")(show.show)
app.command("dashboard")(dashboard.dashboard)
app.command("export")(export.export)
app.command("xprof")(xprof.xprof)
app.command("import")(import_capture.import_capture)
app.command("analyze")(analyze.analyze)
app.command("history")(history.history)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("gate")(gate.gate)
app.add_typer(cache.app, name="cache")
app.command("schema")(schema.schema)
app.command("doctor")(doctor.doctor)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(tpu_perf.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code. Never shows a traceback, unless
    TPU_PERF_DEBUG=1 asks for it."""
    try:
        given = sys.argv[1:] if arguments is None else arguments
        code = app(profile.separated(given), prog_name="tpu-perf", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else ExitCode.OK)
    except typer.Abort:
        sys.exit(INTERRUPTED)
    except _USAGE_ERROR as error:
        error.show()  # type: ignore[attr-defined]
        sys.exit(ExitCode.USAGE)
    except TpuPerfError as error:
        print(f"tpu-perf: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`| head`); nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.OK)
    except Exception as error:
        if os.environ.get("TPU_PERF_DEBUG") == "1":
            raise
        print(_unexpected(error), file=sys.stderr)
        sys.exit(ExitCode.ENVIRONMENT)


def _unexpected(error: Exception) -> str:
    """A message for an error of our own making, with the traceback in a file to attach."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="tpu-perf-", suffix=".log", delete=False, encoding="utf-8"
    ) as log:
        traceback.print_exc(file=log)
    return (
        f"tpu-perf: unexpected {type(error).__name__}: {error}\n"
        f"  this is a fault of tpu-perf; details are in {log.name} (TPU_PERF_DEBUG=1 shows them)"
    )
