"""torch.distributed's backend "tpu_dist" for device "tpu": groups of one process, whose collectives
are copies. Programs written for many devices (FSDP, DTensor, torchtitan) so run on one."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from tpu_perf.errors import EnvironmentProblem

#: The name that TorchTPU gives its backend.
NAME = "tpu_dist"


def _make_group(common: Any, options: Any) -> Any:
    """A group for `torch.distributed.init_process_group`.

    Torch's group without communication computes every collective rightly where there is one rank
    (torch/csrc/distributed/c10d/FakeProcessGroup.hpp).
    """
    from torch._C._distributed_c10d import FakeProcessGroup

    if common.group_size != 1:
        raise EnvironmentProblem(
            f"device tpu has no process groups of {common.group_size} processes, only of one",
            hint="start one process; for collectives on CPU tensors alone name them: "
            'torch.distributed.init_process_group("cpu:gloo")',
        )
    return FakeProcessGroup._create_internal(common.group_rank, common.group_size)


def register() -> None:
    """Make the backend known, and the one that torch takes for the device."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _make_group, extended_api=True, devices=["tpu"])
