"""`tpu-perf profile SCRIPT`: record an unmodified script and say where its steps' time went."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tpu_perf.errors import ConfigError, StoredRunError


class Device(StrEnum):
    tpu = "tpu"


def profile(
    target: Annotated[
        str | None,
        typer.Argument(metavar="SCRIPT", help="The script.", show_default=False),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Its own arguments.", show_default=False),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("-m", metavar="MODULE", help="Run a module instead, as python -m does.",
                     show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run directory; by default runs/profile-<name>-<time>.",
                     show_default=False),
    ] = None,
    device: Annotated[
        Device | None,
        typer.Option(help="Give the script this device where it asks for cuda or cpu.",
                     show_default=False),
    ] = None,
    steps: Annotated[
        str,
        typer.Option(help="What marks a step: auto, profiler, optimizer, explicit, or a regular "
                     "expression for a record_function or a module's class."),
    ] = "auto",
    wait: Annotated[
        int | None, typer.Option(min=0, help="Schedule: steps to leave alone.", show_default=False)
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Schedule: steps to warm up.", show_default=False)
    ] = None,
    active: Annotated[
        int | None,
        typer.Option(min=1, help="Schedule: steps to record; without one, all that come.",
                     show_default=False),
    ] = None,
    repeat: Annotated[int, typer.Option(min=0, help="Schedule: cycles; 0: to the end.")] = 1,
    skip_first: Annotated[int, typer.Option(min=0, help="Schedule: steps before all else.")] = 0,
    no_fence: Annotated[
        bool, typer.Option("--no-fence", help="Do not wait for the device after each step.")
    ] = False,
    details: Annotated[
        bool,
        typer.Option("--details", help="Look up the line and module of every op in every step."),
    ] = False,
    ring: Annotated[
        int | None,
        typer.Option(min=1, help="Keep only the newest so many events of a kind.",
                     show_default=False),
    ] = None,
    no_peak: Annotated[
        bool, typer.Option("--no-peak", help="Do not measure this CPU's peak for MFU first.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Rows of each table printed.")] = 10,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the analysis as one JSON document; what the script "
                     "prints goes to stderr."),
    ] = False,
) -> int:  # fmt: skip
    """Record a script that uses device "tpu" (or, with --device tpu, one that asks for cuda or
    cpu), and print what its steps did. Options for tpu-perf stand before the script.

    Exit codes: the script's own, 1 where it raised, 130 interrupted; 2 wrong options.
    """
    from tpu_perf.profiling.launch import Job, check, default_directory, run_job

    passed = list(arguments or [])
    if module is not None:
        passed = [*([target] if target is not None else []), *passed]
    elif target is None:
        raise ConfigError("name a script, or a module with -m")
    what = module if module is not None else str(target)
    job = Job(
        target=what, is_module=module is not None, arguments=passed,
        directory=(out or default_directory(what)).absolute(),
        device=None if device is None else device.value, steps=steps,
        schedule=_schedule(wait, warmup, active, repeat, skip_first), fence=not no_fence,
        details=details, ring=ring, measures_peak=not no_peak, output_to_stderr=as_json,
    )  # fmt: skip
    check(job)
    code = run_job(job)
    _report(job.directory, top, as_json)
    return code


def separated(arguments: list[str]) -> list[str]:
    """The command line with what follows `-m MODULE` kept for the module, as python has it."""
    if arguments[:1] != ["profile"] or "-m" not in arguments:
        return arguments
    after = arguments.index("-m") + 2
    return (
        arguments if "--" in arguments[:after] else [*arguments[:after], "--", *arguments[after:]]
    )


def _schedule(
    wait: int | None, warmup: int | None, active: int | None, repeat: int, skip_first: int
) -> dict[str, int] | None:
    if active is None:
        if wait is not None or warmup is not None or skip_first:
            raise ConfigError("a schedule needs --active: how many steps are to be recorded")
        return None
    return {"wait": wait or 0, "warmup": warmup or 0, "active": active, "repeat": repeat,
            "skip_first": skip_first}  # fmt: skip


def _report(directory: Path, top: int, as_json: bool) -> None:
    from rich.console import Console

    from tpu_perf.analysis.comparison import recorder_overhead
    from tpu_perf.analysis.quantities import percent
    from tpu_perf.analysis.run_analysis import analyse
    from tpu_perf.analysis.rung_record import RunTables, stored_run
    from tpu_perf.analysis.step_time import step_time
    from tpu_perf.export.analysis_document import analysis_document
    from tpu_perf.export.analysis_terminal import render_analysis
    from tpu_perf.export.terminal_table import printable

    stored = stored_run(directory, None)
    run = stored.run
    console = Console(stderr=as_json)
    tables = RunTables(stored)
    cost = recorder_overhead(tables, run.facts, step_time(tables))
    told = [f"steps {run.facts.source.get('steps', 'unknown')}"]
    if cost.value is not None:
        told.append(f"recording costs {percent(cost.value)} of a step ({cost.provenance})")
    if run.status != "ok":
        told.append(f"{run.status}: {run.reason}")
    told += [f"note: {text}" for text in run.warnings]
    try:
        analysis = analyse(stored, "op", "causal")
    except StoredRunError as error:
        analysis = None
        told.append(error.message)
    if as_json and analysis is not None:
        print(json.dumps(analysis_document(analysis, top), indent=1))
    elif analysis is not None:
        render_analysis(analysis, console, top, memory=False)
    for line in told:
        console.print(f"  {printable(line)}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"run  {directory}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        "     tpu-perf analyze RUN --by module|line|program, tpu-perf export RUN --format xprof",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
