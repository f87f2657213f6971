"""One training step as every engine runs it: forward, backward, gradient norm, optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_perf.record.plan import OptimizerPlan, Precision
from tpu_perf.workloads.interface import Batch

if TYPE_CHECKING:
    import torch  # imported where it is used: a ladder file is validated without it


def build_optimizer(module: torch.nn.Module, plan: OptimizerPlan) -> torch.optim.Optimizer:
    """The unmodified torch optimizer that the plan names, over all trainable parameters."""
    import torch

    classes: dict[str, type[torch.optim.Optimizer]] = {
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
    }
    switches: dict[str, bool] = {
        "foreach": {"foreach": True, "fused": False},
        "fused": {"foreach": False, "fused": True},
        "for_loop": {"foreach": False, "fused": False},
    }[plan.implementation]
    parameters = [p for p in module.parameters() if p.requires_grad]
    arguments: dict[str, Any] = {**plan.params, **switches}
    return classes[plan.name](parameters, **arguments)


@dataclass(slots=True)
class TrainingStep:
    """Calling it with a batch on the device runs one step and returns (loss, gradient norm).

    Both are 0-dim tensors on the device, not yet read back. The gradient norm is logged in every
    step, as trainers do, so that every rung does the same work.
    """

    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[torch.nn.Module, Batch], torch.Tensor]
    precision: Precision
    device_type: str

    def __call__(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.loss(self.module, batch)
        loss.backward()
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        self.optimizer.step()
        return loss.detach(), norm

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        import torch

        if self.precision == "bf16_autocast":
            return torch.autocast(self.device_type, dtype=torch.bfloat16)
        return contextlib.nullcontext()
