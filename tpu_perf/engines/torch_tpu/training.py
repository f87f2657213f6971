"""One training step on TorchTPU's device in each of its modes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_perf.engines.interface import RungUnavailable
from tpu_perf.engines.torch_tpu.cpu_plugin import ATTENTION
from tpu_perf.record.plan import Plan
from tpu_perf.workloads.interface import Batch, BuiltWorkload
from tpu_perf.workloads.training_step import TrainingStep, build_optimizer

if TYPE_CHECKING:
    import torch

Result = tuple["torch.Tensor", "torch.Tensor | None"]

EAGER_MODES = {
    "strict": "DEFER_NEVER",
    "debug": "DEFER_NEVER_AND_LAUNCH_BLOCKING",
    "defer_and_fuse": "DEFER_AND_FUSE",
    "compile": "DEFER_NEVER",
    "whole_step": "DEFER_NEVER",
}


@dataclass(slots=True)
class Training:
    """The workload on the device; `step` starts one step and waits for nothing."""

    step: Callable[[Batch], Result]
    notes: dict[str, str]
    held: contextlib.ExitStack


def build_training(
    plan: Plan, workload: BuiltWorkload, *, on_cpu: bool, compile_options: Mapping[str, Any]
) -> Training:
    """Set the mode and move the workload to the device. Raises RungUnavailable for a mode that
    this workload has not."""
    import torch

    tpu: Any = vars(torch)["tpu"]
    tpu.eager_mode = getattr(tpu.EagerMode, EAGER_MODES[plan.mode])
    notes: dict[str, str] = {}
    held = contextlib.ExitStack()
    if plan.compiler_options:
        options = {name: str(value) for name, value in plan.compiler_options.items()}
        held.enter_context(tpu.compiler.custom_compiler_options(options))
    step = _step(plan, workload, compile_options, notes)
    if not on_cpu:
        return Training(step, notes, held)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    notes["attention"] = ATTENTION

    def with_math(batch: Batch) -> Result:
        with sdpa_kernel([SDPBackend.OVERRIDEABLE, SDPBackend.MATH]):
            return step(batch)

    return Training(with_math, notes, held)


def _step(
    plan: Plan, workload: BuiltWorkload, options: Mapping[str, Any], notes: dict[str, str]
) -> Callable[[Batch], Result]:
    import torch

    if workload.make_step is not None:
        if plan.mode in ("compile", "whole_step"):
            raise RungUnavailable(
                "the workload brings its own step function; on TorchTPU this rung compiles a model"
            )
        users = workload.make_step(torch.device("tpu"))
        return lambda batch: (users(batch).detach(), None)
    module = workload.module.to("tpu")
    if plan.mode == "whole_step":
        return _single_trace(plan, module, workload, options, notes)
    compiled: Any = module
    if plan.mode == "compile":
        compiled = torch.compile(module, backend="tpu", dynamic=False, options=dict(options))
        notes["compiler"] = 'torch.compile(model, backend="tpu", dynamic=False)'
    return TrainingStep(
        module=compiled,
        optimizer=build_optimizer(module, plan.optimizer),
        loss=workload.loss,
        precision=plan.precision,
        device_type="tpu",
    )


def _single_trace(
    plan: Plan,
    module: torch.nn.Module,
    workload: BuiltWorkload,
    options: Mapping[str, Any],
    notes: dict[str, str],
) -> Callable[[Batch], Result]:
    """Forward, backward and optimizer as one program: TorchTPU's SingleTraceTrainer."""
    import torch

    tpu: Any = vars(torch)["tpu"]

    def loss(model: torch.nn.Module, _: Any, batch: Batch) -> torch.Tensor:
        if plan.precision == "bf16_autocast":
            with torch.autocast("tpu", dtype=torch.bfloat16):
                return workload.loss(model, batch)
        return workload.loss(model, batch)

    def compile_graph(graph: Any, _: Any) -> Any:
        return torch.compile(graph, backend="tpu", dynamic=False, options=dict(options))

    trainer = tpu.optimizers.SingleTraceTrainer(
        module, _optimizer(tpu, plan), compile_fn=compile_graph, compute_loss_fn=loss
    )
    notes["whole_step"] = "torch.tpu.optimizers.SingleTraceTrainer; it gives no gradient norm"
    compiled: list[Callable[[Any], torch.Tensor]] = []

    def step(batch: Batch) -> Result:
        if not compiled:
            compiled.append(trainer.make_compiled_train_step(dict(batch)))
        return compiled[0](dict(batch)).detach(), None

    return step


def _optimizer(tpu: Any, plan: Plan) -> Any:
    """TorchTPU's functional optimizer with the plan's numbers, moments in the parameters' type."""
    given = dict(plan.optimizer.params)
    if plan.optimizer.name == "adamw":
        beta1, beta2 = given.pop("betas")
        return tpu.optimizers.AdamW(**given, beta1=beta1, beta2=beta2, use_bfloat16_moments=False)
    if plan.optimizer.name == "sgd":
        return tpu.optimizers.Sgd(**given)
    raise RungUnavailable(f"TorchTPU has no functional {plan.optimizer.name}")
