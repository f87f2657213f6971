"""tpu_perf: a profiling and performance-tuning workbench for PyTorch on Google TPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_perf.workloads.user_workload import Workload

__all__ = ["Workload"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Looked up when first used: reading a stored ladder must not load the measuring side.
    if name == "Workload":
        from tpu_perf.workloads.user_workload import Workload

        return Workload
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
