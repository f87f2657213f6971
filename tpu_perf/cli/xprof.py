"""`tpu-perf xprof RUN`: export a run and show it in the real XProf server until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_PORT = 8791  # XProf's own


def xprof(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run or ladder directory.", show_default=False)
    ],
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, help="Port of the server; 0 takes a free one."),
    ] = DEFAULT_PORT,
    no_serve: Annotated[bool, typer.Option("--no-serve", help="Only write the files.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Log directory. [default: RUN/exports/xprof]")
    ] = None,
) -> None:
    """Open a run in XProf."""
    from tpu_perf.cli.export import EXPORTS, export_any, print_export
    from tpu_perf.cli.xprof_server import free_port, serve

    if not no_serve:  # what cannot work is said before the export's work
        port = free_port(port)
    log_directory = directory / EXPORTS / "xprof" if out is None else out
    written = export_any(directory, "xprof", log_directory)
    for name, exported in written:
        print_export(exported, name if len(written) > 1 else None)
    if not no_serve:
        serve(log_directory, port)
