"""`Tensor.pin_memory` beside device "tpu": copies into memory of their own, marked as pinned.

JAX moves host memory to the device by itself and takes no page-locked memory from outside, so
pinning buys no speed here; it works because DataLoader and training scripts ask for it.
"""

from __future__ import annotations

from typing import Any

import torch

#: Libraries unregister their kernels when collected.
_libraries: list[torch.library.Library] = []


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    pinned = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype)
    pinned.copy_(self)
    pinned.untyped_storage()._pinned_for_tpu = True  # type: ignore[attr-defined]
    return pinned


def _is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    return getattr(self.untyped_storage(), "_pinned_for_tpu", False)


def register() -> None:
    """Answer for CPU tensors what torch otherwise asks of a backend written in C++."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_pin_memory", _pin_memory, "CPU")
    library.impl("is_pinned", _is_pinned, "CPU")
    _libraries.append(library)
