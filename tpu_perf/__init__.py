"""tpu_perf: a profiling and performance-tuning workbench for PyTorch on Google TPUs."""

from __future__ import annotations

__version__ = "0.1.0"
