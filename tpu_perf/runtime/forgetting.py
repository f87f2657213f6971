"""Empty the memory tier: every op finds its program anew, in the directory or by compiling."""

from __future__ import annotations

from tpu_perf.runtime.call_plan import PLANS
from tpu_perf.runtime.moving_views import forget_moving_views
from tpu_perf.runtime.program_cache import CACHE
from tpu_perf.runtime.segment import forget_segments


def forget_programs() -> None:
    """What `torch.tpu._clear_cache` does."""
    for plan in PLANS:
        plan.programs.clear()
        plan.program = plan.donating = None
    forget_segments()
    forget_moving_views()
    CACHE.clear()
