"""The components of a program's key, as the device has them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_perf.program_store.components import Components, Process, inputs_text
from tpu_perf.runtime import jax_private

Aval = tuple[tuple[int, ...], "np.dtype[Any]"]


def process_components() -> Process:
    """Those that every program of this process shares. Starts the platform."""
    import torch

    texts = jax_private.platform_components()
    return Process({**texts, "torch": torch.__version__, "lowerings": source_digest()})


def components_of(
    process: Process, text: str, in_avals: Sequence[Aval], donated: Sequence[int], options: str
) -> Components:
    """The key of one program; `options` is what `options_text` gives."""
    return Components.of(
        process,
        {
            "program": text,
            "inputs": inputs_text((shape, str(dtype)) for shape, dtype in in_avals),
            "donation": ",".join(map(str, donated)),
            "compiler_options": options,
        },
    )


def options_text(options: Mapping[str, Any]) -> str:
    """Compiler options as text: the same for the same options in any order."""
    return json.dumps(options, sort_keys=True, default=str) if options else "{}"


def source_digest() -> str:
    """A digest of the code that turns ops into programs: a change of it makes old entries miss."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
