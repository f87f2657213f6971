"""`tpu-perf import FILE`: read a capture made elsewhere into a run directory."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tpu_perf.importers.interface import Imported, Importer
    from tpu_perf.record.run import Run


def import_capture(
    file: Annotated[
        Path, typer.Argument(help="The capture: a file, or a directory.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run directory; by default runs/import-<name>-<time>.", show_default=False
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was read as one JSON document.")
    ] = False,
) -> None:
    """Read a capture of another tool into a run directory. Loads neither torch nor jax.

    Exit codes: 0 fine, 2 damaged, of no known kind, or --out exists.
    """
    from rich.console import Console

    importer = find_importer(file)
    directory, run, found = import_into(file, importer, out or default_directory(file))
    if as_json:
        print(json.dumps(document(directory, importer, run, found), indent=1))
    else:
        _print(Console(), directory, importer, run, found)


def find_importer(path: Path) -> Importer:
    """The importer that recognises the path. Raises ImportProblem if none or several do."""
    from tpu_perf.errors import ImportProblem
    from tpu_perf.importers.interface import IMPORTERS

    if not path.exists():
        raise ImportProblem(f"{path} does not exist")
    if path.is_file() and path.stat().st_size == 0:
        raise ImportProblem(f"{path} is empty", hint="its writer died, or has not ended yet")
    found = [importer for _, importer in IMPORTERS.items() if importer.recognises(path)]
    if not found:
        known = "\n  ".join(f"{name}: {importer.summary}" for name, importer in IMPORTERS.items())
        raise ImportProblem(f"{path} is of no kind that can be read", hint=f"these can:\n  {known}")
    if len(found) > 1:
        names = ", ".join(importer.name for importer in found)
        raise ImportProblem(f"{path} is recognised by several importers: {names}")
    return found[0]


def default_directory(path: Path) -> Path:
    name = path.resolve().name.split(".")[0] or "capture"
    return Path("runs") / f"import-{name}-{datetime.now():%Y%m%d-%H%M%S}"


def import_into(path: Path, importer: Importer, directory: Path) -> tuple[Path, Run, Imported]:
    """Fill `directory` from the capture. It appears whole or, where reading fails, not at all."""
    import shutil

    from tpu_perf.errors import ImportProblem
    from tpu_perf.record.store import RunWriter

    if directory.exists():
        raise ImportProblem(f"{directory} exists already", hint="name another with --out")
    writer = RunWriter(directory)
    try:
        found = importer.read(path, writer)
        run = run_of(path, importer, found, directory.name)
        writer.finish(run)
    except BaseException:
        shutil.rmtree(writer.partial, ignore_errors=True)
        raise
    return directory, run, found


def run_of(path: Path, importer: Importer, found: Imported, name: str) -> Run:
    """run.json of a capture: what it does not say about how it was made is unknown."""
    from tpu_perf.record.plan import NOT_SAMPLED, OptimizerPlan, Plan, WorkloadPlan
    from tpu_perf.record.run import Environment, Facts, Run

    plan = Plan(
        ladder="import",
        rung=name,
        workload=WorkloadPlan(kind="import", params={"importer": importer.name}),
        optimizer=OptimizerPlan(name="unknown"),
        engine="import",
        mode="unknown",
        precision="unknown",
        sampling=NOT_SAMPLED,
    )
    environment = Environment(
        hostname=found.hostname,
        os="unknown",
        cpu="unknown",
        cores=None,
        memory_bytes=None,
        python="unknown",
        versions=dict(found.versions),
        device_kind=found.device_kind,
        device_count=found.device_count,
    )
    counts = {f"read: {what}": f"{number} events" for what, number in found.counts.items()}
    source = {"capture": found.source, "file": path.name, "importer": importer.name, **counts}
    return Run(
        plan=plan,
        environment=environment,
        status="ok",
        facts=Facts(source=source),
        warnings=found.notes,
    )


def document(directory: Path, importer: Importer, run: Run, found: Imported) -> dict[str, object]:
    return {
        "schema_version": 1,
        "dir": str(directory.resolve()),
        "importer": importer.name,
        "source": found.source,
        "device_kind": found.device_kind,
        "device_count": found.device_count,
        "hostname": found.hostname,
        "versions": dict(found.versions),
        "counts": dict(found.counts),
        "warnings": list(run.warnings),
    }


def _print(
    console: Console, directory: Path, importer: Importer, run: Run, found: Imported
) -> None:
    from rich.text import Text

    from tpu_perf.export.terminal_table import emit, printable

    emit(console, Text.assemble(("import ", "dim"), (printable(found.source), "bold")))
    device = f"{found.device_kind} x {found.device_count}, host {found.hostname}"
    emit(console, Text(f"  device {printable(device)}"))
    for what, number in found.counts.items():
        emit(console, Text(f"  {number:>12,}  {printable(what)}"))
    for warning in run.warnings:
        emit(console, Text(f"  note: {printable(warning)}", style="dim"))
    emit(console, Text.assemble(("run  ", "bold"), str(directory.resolve())))
