"""What every workload kind builds, and the registry of kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tpu_perf.config.models import StrictModel
from tpu_perf.record.plan import Dims, WorkloadPlan
from tpu_perf.registry import Registry

if TYPE_CHECKING:
    import torch  # a ladder file is validated without it

#: A batch is a mapping of names to CPU tensors; the engine moves it to its device.
Batch: TypeAlias = "Mapping[str, torch.Tensor]"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltWorkload:
    """A training job before it meets a device.

    `module` lies on the CPU with parameters drawn from the plan's seed. `batch(i)` gives step i's
    batch and must return the same tensors whenever it is asked for the same i. `loss(module,
    batch)` returns a 0-dim float tensor on the batch's device.
    """

    module: torch.nn.Module
    batch: Callable[[int], Batch]
    loss: Callable[[torch.nn.Module, Batch], torch.Tensor]
    tokens_per_step: int | None = None
    samples_per_step: int | None = None
    #: A step function of the user's own, built for a device: `make_step(device)` returns
    #: `step(batch) -> loss`. Replaces forward, backward and optimizer where given; `module` is
    #: then an empty one unless the user gave it.
    make_step: Callable[[torch.device], Callable[[Batch], torch.Tensor]] | None = None
    #: How the model came split by torch's tensor parallel API, by parameter: for each dimension
    #: the mesh axes. The parameters themselves are whole.
    placements: Mapping[str, Dims] = field(default_factory=dict)


class WorkloadKind(Protocol):
    """One entry of the registry. Importing its module must not import torch."""

    @property
    def parameters(self) -> type[StrictModel]:
        """The model of the kind's parameters: types, defaults, documentation."""
        ...

    def build(self, plan: WorkloadPlan, seed: int) -> BuiltWorkload:
        """Build the job. Raises WorkloadError with what to do if it cannot."""
        ...

    def validate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Check parameters without torch. Raises pydantic.ValidationError."""
        ...


WORKLOADS: Registry[WorkloadKind] = Registry("workload kind", "tpu_perf.workloads")
