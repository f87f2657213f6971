"""The lowering table: aten ops as JAX functions, one file per family."""

from __future__ import annotations

import importlib
import pkgutil

from tpu_perf.runtime.lowerings.registry import TABLE, Lowering


def load_all() -> dict[str, Lowering]:
    """Import every module of this package, so that the table is full; return the table."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return TABLE
