"""accelerate's list of compile backends, for the one of device "tpu": the list is an enum, fixed.

`Accelerator(dynamo_backend="tpu")` and `TrainingArguments(torch_compile_backend="tpu")` look their
backend up in `accelerate.utils.DynamoBackend`, which has no member of that name. The smallest
adaptor: the enum is asked once more before it refuses. All else that accelerate and transformers
need they ask of torch.accelerator, and find here.

Left as it is: `mixed_precision="fp16"`, which accelerate refuses on any device named "tpu", with
an error that says so; bf16 works.
"""

from __future__ import annotations

import types
from typing import Any

NAME = "TPU"


def teach(module: types.ModuleType) -> None:
    """Let `DynamoBackend("TPU")` be, in module `accelerate.utils.dataclasses`."""
    backends: Any = module.DynamoBackend
    if NAME in backends.__members__:
        return
    member = str.__new__(backends, NAME)
    member._name_ = member._value_ = NAME

    def missing(cls: Any, value: object) -> Any:
        return member if value == NAME else None

    backends._missing_ = classmethod(missing)
