"""What torch itself computes on the CPU: the numbers every rung is compared with.

The reference is eager torch with the same optimizer and the same precision: float32 for float32
rungs, bfloat16 autocast on the CPU for bf16 rungs. So a difference is the rung's doing, and not
that of the precision that was asked for; the tolerance covers the order of summation, which is
the backend's own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_perf.ladder.failure import from_exception
from tpu_perf.ladder.protocol import Message, WorkerSide
from tpu_perf.record.plan import Plan, Precision
from tpu_perf.workloads.interface import WORKLOADS, Batch, BuiltWorkload

if TYPE_CHECKING:
    import torch

#: Relative difference of loss and gradient norm that still counts as the same result. float32:
#: sums in another order, carried through a few optimizer steps. bfloat16: 8 bits of mantissa.
TOLERANCES: dict[Precision, float] = {"float32": 1e-3, "bf16_autocast": 3e-2}

FLOPS_CONVENTION = (
    "torch FlopCounterMode over forward and backward: matrix products and convolutions, 2 FLOPs a "
    "multiply-add, attention counted in full (non-causal), optimizer and elementwise not counted"
)

#: One training step: (loss, gradient norm or None).
Step = Callable[[Batch], "tuple[torch.Tensor, torch.Tensor | None]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Torch's losses and gradient norms for the first steps, and the FLOPs of one step."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    model_flops_per_step: float | None


def reference_key(plan: Plan) -> str:
    """Plans with the same key have the same reference."""
    document = plan.to_json()
    names = ("workload", "optimizer", "precision", "seed")
    parts = {name: document[name] for name in names}
    return json.dumps({**parts, "steps": plan.sampling.numerics_steps}, sort_keys=True)


def run_reference_job(parent: WorkerSide, job: Message) -> None:
    """Measure the peak of each precision, then answer each plan's reference, one by one."""
    from tpu_perf.ladder.peak import measure_peak

    for precision in job["precisions"]:
        parent.reply("progress", phase=f"GEMM peak {precision}")
        peak = measure_peak(precision)
        parent.reply("peak", precision=precision, flops_per_s=peak.flops_per_s, source=peak.source)
    for document in job["plans"]:
        plan = Plan.from_json(document)
        parent.reply("progress", phase="reference on torch CPU")
        try:
            reference = compute_reference(plan)
        except Exception as error:
            # The rungs may still run: then there is nothing to compare them with, and it is said.
            parent.reply(
                "no_reference", key=reference_key(plan), reason=from_exception(error).reason
            )
            continue
        parent.reply(
            "reference",
            key=reference_key(plan),
            losses=reference.losses,
            grad_norms=reference.grad_norms,
            flops=reference.model_flops_per_step,
        )
    parent.reply("finished")


def compute_reference(plan: Plan) -> Reference:
    """Run the first `numerics_steps` steps of the plan's job with eager torch on the CPU."""
    import torch

    workload = WORKLOADS.get(plan.workload.kind).build(plan.workload, plan.seed)
    step = _build_step(plan, workload)
    losses: list[float] = []
    norms: list[float] = []
    torch.manual_seed(plan.seed)
    with _random_numbers_of_the_device(plan.seed):
        for index in range(plan.sampling.numerics_steps):
            loss, norm = step(workload.batch(index))
            if not math.isfinite(float(loss)):
                break
            losses.append(float(loss))
            if norm is not None and math.isfinite(float(norm)):
                norms.append(float(norm))
    return Reference(
        losses=tuple(losses),
        grad_norms=tuple(norms),
        model_flops_per_step=count_flops(step, workload.batch(0)),
    )


def _build_step(plan: Plan, workload: BuiltWorkload) -> Step:
    import torch

    from tpu_perf.workloads.training_step import TrainingStep, build_optimizer

    if workload.make_step is not None:
        users_step = workload.make_step(torch.device("cpu"))
        return lambda batch: (users_step(batch), None)
    return TrainingStep(
        module=workload.module,
        optimizer=build_optimizer(workload.module, plan.optimizer),
        loss=workload.loss,
        precision=plan.precision,
        device_type="cpu",
    )


def count_flops(step: Step, batch: Batch) -> float | None:
    """FLOPs of one step by FLOPS_CONVENTION, None if nothing countable was run."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    # The CPU's fused attention is not among the ops that torch can count; its parts are.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        step(batch)
    return float(counter.get_total_flops()) or None


@contextlib.contextmanager
def _random_numbers_of_the_device(seed: int) -> Iterator[Any]:
    """Make torch on the CPU draw what the device draws, so that dropout can be compared."""
    try:
        module = importlib.import_module("tpu_perf.runtime.random_numbers")
        reference_random = module.reference_random
    except (ImportError, AttributeError):
        yield None
        return
    with reference_random(seed) as mode:
        yield mode
