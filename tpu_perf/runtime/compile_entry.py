"""What torch.compile(backend="tpu") finds before the device was used (entry point
torch_dynamo_backends): it loads the device when there is a graph to compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def tpu(module: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
    """The Dynamo backend, see `compile_backend.tpu_backend`.

    Raises EnvironmentProblem if another PrivateUse1 backend is already loaded.
    """
    from tpu_perf.runtime import device

    device.load()
    from tpu_perf.runtime.compile_backend import tpu_backend

    return tpu_backend(module, example_inputs, **options)
