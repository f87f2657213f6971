"""Workload kind `python`: a training job that the user's own function returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from tpu_perf.config.models import StrictModel, mistake
from tpu_perf.errors import WorkloadError
from tpu_perf.record.plan import WorkloadPlan
from tpu_perf.workloads.interface import WORKLOADS, Batch, BuiltWorkload
from tpu_perf.workloads.parallelised import keeping_whole_values, made_whole
from tpu_perf.workloads.user_code import load_function, user_errors
from tpu_perf.workloads.user_workload import (
    Workload,
    as_workload,
    check_workload,
    from_mapping,
    random_access,
    to_mapping,
)

if TYPE_CHECKING:
    import torch


class PythonParameters(StrictModel):
    """Code of the user's own."""

    function: str
    """`module:function`, or `./file.py:function` relative to the ladder file."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""

    @field_validator("function")
    @classmethod
    def _find_file(cls, value: str, info: ValidationInfo) -> str:
        module, colon, function = value.rpartition(":")
        if not colon or not module or not function.isidentifier():
            raise mistake(f"{value!r} should read module:function or ./file.py:function")
        if not module.endswith(".py"):
            return value
        directory = (info.context or {}).get("directory", Path.cwd())
        file = Path(directory, module).resolve()
        if not file.is_file():
            raise mistake(f"there is no file {file}")
        return f"{file}:{function}"


class Python:
    """The registry's entry."""

    parameters = PythonParameters

    def validate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return PythonParameters.model_validate(dict(params)).model_dump()

    def build(self, plan: WorkloadPlan, seed: int) -> BuiltWorkload:
        target = plan.params["function"]
        function = load_function(target)
        _seed_all(seed)
        with keeping_whole_values() as kept, user_errors(target):
            returned = function(**plan.params["params"])
        workload = as_workload(returned, target)
        check_workload(workload, target)
        model = workload.model
        split = {} if model is None else made_whole(model, kept, target)
        return replace(_built(workload, target, seed), placements=split)


def _built(workload: Workload, target: str, seed: int) -> BuiltWorkload:
    import torch

    raw = random_access(workload.batches, seed, target)

    def batch(index: int) -> Batch:
        with user_errors(f"{target}, batch {index}"):
            drawn = raw(index)
        return to_mapping(drawn, f"{target}: batch {index}")

    with user_errors(f"{target}, batch 0"):
        first = raw(0)
    named = to_mapping(first, f"{target}: batch 0")

    def loss(module: torch.nn.Module, batch: Batch) -> torch.Tensor:
        value = _loss_of(workload, module, from_mapping(batch, first))
        return _checked_loss(value, target)

    return BuiltWorkload(
        module=torch.nn.Module() if workload.model is None else workload.model,
        batch=batch,
        loss=loss,
        tokens_per_step=workload.tokens_per_step or _tokens(named),
        samples_per_step=workload.samples_per_step or _samples(named),
        make_step=_step_maker(workload, first, target),
    )


def _loss_of(workload: Workload, module: torch.nn.Module, batch: Any) -> Any:
    if workload.loss is not None:
        return workload.loss(module, batch)
    if isinstance(batch, Mapping):
        output = module(**batch)
    else:
        output = module(*batch) if isinstance(batch, tuple | list) else module(batch)
    return getattr(output, "loss", output)


def _checked_loss(value: Any, target: str) -> torch.Tensor:
    import torch

    if not isinstance(value, torch.Tensor) or value.dim() != 0:
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
        raise WorkloadError(
            f"{target}: the loss is a {type(value).__name__}{shape}, not a 0-dim tensor",
            hint="reduce it with .mean(), or give a loss(model, batch) function",
        )
    return value


def _step_maker(
    workload: Workload, first: Any, target: str
) -> Callable[[torch.device], Callable[[Batch], torch.Tensor]] | None:
    make_step = workload.make_step
    if make_step is None:
        return None

    def build(device: torch.device) -> Callable[[Batch], torch.Tensor]:
        with user_errors(f"{target}, make_step"):
            step = make_step(device)
        if not callable(step):
            raise WorkloadError(f"{target}: make_step returned no function")
        return lambda batch: _checked_loss(step(from_mapping(batch, first)), target)

    return build


def _tokens(batch: Batch) -> int | None:
    return batch["input_ids"].numel() if "input_ids" in batch else None


def _samples(batch: Batch) -> int | None:
    first = next(iter(batch.values()), None)
    return None if first is None or first.dim() == 0 else first.shape[0]


def _seed_all(seed: int) -> None:
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


WORKLOADS.add("python", Python())
