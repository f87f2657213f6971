"""What torch itself computes on the CPU: the numbers every rung is compared with.

The reference is eager torch with the same optimizer and the same precision: float32 for float32
rungs, bfloat16 autocast on the CPU for bf16 rungs. So a difference is the rung's doing, and not
that of the precision that was asked for; the tolerance covers the order of summation, which is
the backend's own.
"""

from __future__ import annotations

import contextlib
import json
import math
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

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

RandomStream = Literal["device", "torch", "inductor", "torch_tpu"]
#: Generators that cannot be followed: losses of steps that draw from them are not compared.
OWN_STREAMS: dict[RandomStream, str] = {"inductor": "inductor", "torch_tpu": "TorchTPU"}

#: One training step: (loss, gradient norm or None).
Step = Callable[[Batch], "tuple[torch.Tensor, torch.Tensor | None]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Torch's losses and gradient norms for the first steps, and the FLOPs of one step."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    draws: bool  # whether the steps drew random numbers (dropout, say)
    model_flops_per_step: float | None


def reference_key(plan: Plan) -> str:
    """Plans with the same key have the same reference."""
    return json.dumps({**_job(plan), "random": random_stream(plan)}, sort_keys=True)


def _job(plan: Plan) -> dict[str, Any]:
    document = plan.to_json()
    names = ("workload", "optimizer", "precision", "seed")
    return {**{name: document[name] for name in names}, "steps": plan.sampling.numerics_steps}


def random_stream(plan: Plan) -> RandomStream:
    """Whose random numbers the rung draws for dropout and the like."""
    if plan.engine == "torch_tpu":
        return "torch_tpu"
    if plan.engine != "cpu":
        return "device"
    return "inductor" if plan.mode == "inductor" else "torch"


def run_reference_job(parent: WorkerSide, job: Message) -> None:
    """Measure the peak of each precision, then answer each plan's reference, one by one."""
    from tpu_perf.ladder.peak import measure_peak

    _import_what_is_needed(job["plans"])
    parent.command()  # until now others may have been at work
    for precision in job["precisions"]:
        parent.reply("progress", phase=f"GEMM peak {precision}")
        peak = measure_peak(precision)
        parent.reply("peak", precision=precision, flops_per_s=peak.flops_per_s, source=peak.source)
    deterministic: dict[str, Reference] = {}
    for document in job["plans"]:
        plan = Plan.from_json(document)
        job_key, key = json.dumps(_job(plan), sort_keys=True), reference_key(plan)
        parent.reply("progress", phase="reference on torch CPU")
        try:
            reference = deterministic.get(job_key) or compute_reference(plan)
        except Exception as error:
            # The rungs may still run: then there is nothing to compare them with, and it is said.
            traceback.print_exc()
            parent.reply("no_reference", key=key, reason=from_exception(error).reason)
            continue
        if not reference.draws:
            deterministic[job_key] = reference
        parent.reply("reference", key=key, **asdict(reference))
    parent.reply("finished")


def _import_what_is_needed(plans: list[Message]) -> None:
    """Build one workload, for the sake of the imports it does."""
    plan = Plan.from_json(plans[0])
    with contextlib.suppress(Exception):  # told when its reference is computed
        WORKLOADS.get(plan.workload.kind).build(plan.workload, plan.seed)


def compute_reference(plan: Plan) -> Reference:
    """Run the first `numerics_steps` steps of the plan's job with eager torch on the CPU."""
    import torch

    workload = WORKLOADS.get(plan.workload.kind).build(plan.workload, plan.seed)
    step = _build_step(plan, workload)
    # Drawn beforehand: the data's random numbers are no concern of the device's generator.
    batches = [workload.batch(index) for index in range(max(1, plan.sampling.numerics_steps))]
    losses: list[float] = []
    norms: list[float] = []
    torch.manual_seed(plan.seed)
    before = torch.get_rng_state()
    first_batches = batches[: plan.sampling.numerics_steps]
    with _random_numbers_of(random_stream(plan), plan.seed) as device_draws:
        for batch in first_batches:
            loss, norm = step(batch)
            if not math.isfinite(float(loss)):
                break
            losses.append(float(loss))
            if norm is not None and math.isfinite(float(norm)):
                norms.append(float(norm))
        draws = device_draws() or not torch.equal(before, torch.get_rng_state())
    if draws and random_stream(plan) in OWN_STREAMS:
        losses, norms = [], []  # the generator is its own: nothing to compare with
    return Reference(
        losses=tuple(losses),
        grad_norms=tuple(norms),
        draws=draws,
        model_flops_per_step=count_flops(step, batches[0]),
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
def _random_numbers_of(stream: RandomStream, seed: int) -> Iterator[Callable[[], bool]]:
    """Make torch on the CPU draw what the device draws, so that dropout can be compared.

    Yields a function that tells whether the device's generator has been drawn from."""
    if stream != "device":
        yield lambda: False
        return
    from tpu_perf.runtime import random_numbers

    with random_numbers.reference_random(seed):
        yield lambda: random_numbers.GENERATOR.offset > 0
