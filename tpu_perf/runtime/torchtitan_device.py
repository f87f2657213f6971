"""torchtitan's list of compile backends that may hold flex_attention, for the one of device "tpu".

`compile.backend = "tpu"` is refused there for models with flex_attention, since other backends than
inductor would lose its kernel. This one loses nothing, so it is let through. All else torchtitan
asks of torch: the device of torch.accelerator, the process group `tpu_dist`.
"""

from __future__ import annotations

import types
from typing import Any


def teach(module: types.ModuleType) -> None:
    """Let backend "tpu" through, in module `torchtitan.distributed.compile`."""
    original = getattr(module, "_maybe_regional_inductor_backend", None)
    if original is None:  # versions before 0.3 have no such list
        return

    def chosen(model: Any, backend: Any) -> Any:
        return backend if backend == "tpu" else original(model, backend)

    module._maybe_regional_inductor_backend = chosen  # type: ignore[attr-defined]
