"""Which Python runs a plan's worker."""

from __future__ import annotations

from tpu_perf.engines.torch_tpu.environment import find_python, worker_environment
from tpu_perf.ladder.process import Interpreter
from tpu_perf.record.plan import Plan


def interpreter_of(plan: Plan) -> Interpreter | None:
    """None for this one. Raises EnvironmentProblem where the engine's is missing."""
    if plan.engine != "torch_tpu":
        return None
    python = find_python(plan.engine_options.get("python"))
    return Interpreter(str(python), worker_environment(python))
