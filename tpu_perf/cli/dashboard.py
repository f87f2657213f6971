"""`tpu-perf dashboard [DIR]`: ladders and runs in a browser. Loads neither torch nor jax."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LOCAL = "127.0.0.1"
DEFAULT_PORT = 8501  # Streamlit's own


def dashboard(
    directory: Annotated[
        Path,
        typer.Argument(metavar="[DIR]", help="What to show: nothing outside it is read."),
    ] = Path("runs"),
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, help="Port of the server; 0 takes a free one."),
    ] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; others than this machine warn.")
    ] = LOCAL,
) -> None:
    """Show ladders and runs in a browser."""
    from tpu_perf.cli.dashboard_server import serve

    serve(directory, host, port)
