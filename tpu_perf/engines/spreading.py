"""A training job spread over a mesh of devices as its plan says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tpu_perf.engines.interface import RungUnavailable
from tpu_perf.errors import EnvironmentProblem
from tpu_perf.record.plan import Dims, ShardingPlan

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from tpu_perf.runtime.step_sharding import StepSharding
    from tpu_perf.sharding.assignment import Assignment


class Spread:
    """The mesh of a rung, where its tensors lie, and what the user should know of that."""

    def __init__(
        self, plan: ShardingPlan, module: torch.nn.Module,
        given: Mapping[str, Dims] | None = None,
    ) -> None:  # fmt: skip
        """Moves the module to the device, each parameter to its place on the mesh. `given` is how
        the model came split, which holds over the strategy's own tensor parallel rules.

        Raises RungUnavailable where there are too few devices, ShardingError where the plan does
        not fit the model.
        """
        from tpu_perf.runtime.mesh import DeviceMesh
        from tpu_perf.runtime.step_sharding import Placed, StepSharding
        from tpu_perf.sharding.assignment import assign
        from tpu_perf.sharding.model_facts import parameter_facts
        from tpu_perf.sharding.strategies import BATCH_AXES, SEQUENCE_AXES

        self.assignment: Assignment = assign(plan, parameter_facts(module), given)
        self._of_batch: list[str] = []
        self.optimizers: tuple[torch.optim.Optimizer, ...] = ()
        try:
            self.mesh = DeviceMesh(plan.mesh)
        except EnvironmentProblem as error:
            raise RungUnavailable(error.message) from error
        split = {
            parameter: self.assignment.parameters[name]
            for name, parameter in module.named_parameters()
        }
        module.to("tpu")
        placed = [
            Placed(name=name, tensor=parameter, own=one.own, use=one.use)
            for name, parameter in module.named_parameters()
            for one in (split[parameter],)
        ]
        self.sharding: StepSharding = StepSharding(
            self.mesh, placed, self._batch, plan.gather_again,
            tuple(axis for axis in (*BATCH_AXES, *SEQUENCE_AXES) if axis in plan.mesh),
        )  # fmt: skip
        self.sharding.spread()

    def _batch(self, name: str, shape: tuple[int, ...]) -> Any:
        return self.assignment.batch(name, shape, self._of_batch)

    def table(self) -> pa.Table:
        """Where the state lies."""
        return self.sharding.table(self.optimizers)

    def notes(self) -> Mapping[str, str]:
        """What did not divide."""
        told = dict.fromkeys((*self.assignment.warnings, *self._of_batch))
        return {"sharding": "; ".join(told)} if told else {}
