"""`tpu-perf show DIR`: print a stored ladder again. Loads neither torch nor jax."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def show(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A ladder directory.", show_default=False)
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as one JSON document.")
    ] = False,
) -> None:
    """Print a stored ladder again."""
    if as_json:
        from tpu_perf.export.json_document import ladder_document

        print(json.dumps(ladder_document(directory), indent=1))
        return
    from rich.console import Console

    from tpu_perf.export.terminal import render_ladder

    render_ladder(directory, Console())
