"""`tpu-perf export RUN --format NAME`: write a run, or a whole ladder, for other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tpu_perf.export.run_interface import Exported

EXPORTS = "exports"  # below a run or ladder directory, one directory a format


def export(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run or ladder directory.", show_default=False)
    ],
    format: Annotated[
        str, typer.Option("--format", help="What to write; a wrong name lists them all.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write. [default: RUN/exports/FORMAT]")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as one JSON document.")
    ] = False,
) -> None:
    """Write a run for other tools: traces for viewers, tables, reports."""
    written = export_any(directory, format, out)
    if as_json:
        print(json.dumps({"format": format, "exports": [_document(*pair) for pair in written]}))
        return
    for name, exported in written:
        print_export(exported, name if len(written) > 1 else None)


def _document(name: str, exported: Exported) -> dict[str, Any]:
    return {
        "of": name,
        "files": [str(file) for file in exported.files],
        "notes": list(exported.notes),
        "opens_with": exported.opens_with,
    }


def print_export(exported: Exported, name: str | None = None) -> None:
    if name is not None:
        typer.echo(f"{name}:")
    for file in exported.files:
        typer.echo(f"wrote {file}")
    for note in exported.notes:
        typer.echo(f"  note: {note}")
    if exported.opens_with is not None:
        typer.echo(f"  open with: {exported.opens_with}")


def export_any(directory: Path, format: str, out: Path | None) -> list[tuple[str, Exported]]:
    """Export a run directory, or for a ladder directory the ladder itself (formats that know
    ladders) and each of its rungs (formats that know runs); pairs of name and what was written.

    Raises TpuPerfError for an unknown format, or a directory that is neither.
    """
    from tpu_perf.errors import TpuPerfError
    from tpu_perf.export.interface import EXPORTERS
    from tpu_perf.export.run_interface import RUN_EXPORTERS
    from tpu_perf.record.store import LADDER_FILE, load_run

    is_ladder = (directory / LADDER_FILE).exists()
    known = {*RUN_EXPORTERS, *(EXPORTERS if is_ladder else ())}
    if format not in known:
        kind = "ladder" if is_ladder else "run"
        raise TpuPerfError(
            f"unknown format {format!r} for a {kind}", hint=f"known: {', '.join(sorted(known))}"
        )
    target = directory / EXPORTS / format if out is None else out
    if is_ladder:
        return _export_ladder(directory, format, target, moved=out is not None)
    return [(directory.name, RUN_EXPORTERS.get(format).write(load_run(directory), target))]


def _export_ladder(
    directory: Path, format: str, target: Path, *, moved: bool
) -> list[tuple[str, Exported]]:
    from tpu_perf.analysis.rung_record import open_rungs
    from tpu_perf.errors import StoredRunError
    from tpu_perf.export.interface import EXPORTERS
    from tpu_perf.export.run_interface import RUN_EXPORTERS, Exported
    from tpu_perf.record.store import load_run

    ladder, rungs = open_rungs(directory)
    written: list[tuple[str, Exported]] = []
    if format in EXPORTERS:
        file = EXPORTERS.get(format).write(directory)
        written.append((ladder.name, Exported(files=[_moved(file, target) if moved else file])))
    if format not in RUN_EXPORTERS:
        return written
    exporter = RUN_EXPORTERS.get(format)
    # Rungs share one directory where the format itself keeps runs apart, as XProf's does.
    shared = format == "xprof"
    for rung in rungs:
        try:
            stored = load_run(rung.directory)
            exported = exporter.write(stored, target if shared else target / rung.name)
        except StoredRunError as error:
            exported = Exported(files=[], notes=[f"not exported: {error.message}"])
        written.append((rung.name, exported))
    return written


def _moved(file: Path, target: Path) -> Path:
    """Ladder exporters write into the ladder; --out asks for it elsewhere."""
    import shutil

    target.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(file, target / file.name))
