"""tpu_perf: a profiling and performance-tuning workbench for PyTorch on Google TPUs."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import tpu_perf.record

if TYPE_CHECKING:
    from tpu_perf.profiling.in_code import schedule, step
    from tpu_perf.workloads.user_workload import Workload

__all__ = ["Workload", "record", "schedule", "step"]
__version__ = "0.1.0"


class _Record(types.ModuleType):
    """The package `tpu_perf.record`, which is also the function that records a block."""

    def __call__(self, directory: Any, **options: Any) -> Any:
        from tpu_perf.profiling.in_code import record as record_block

        return record_block(directory, **options)


tpu_perf.record.__class__ = _Record


def __getattr__(name: str) -> object:
    # Looked up when first used: reading a stored ladder must not load the measuring side.
    if name == "Workload":
        from tpu_perf.workloads.user_workload import Workload

        return Workload
    if name in ("step", "schedule"):
        from tpu_perf.profiling import in_code

        return getattr(in_code, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
