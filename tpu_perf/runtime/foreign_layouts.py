"""Sparse, quantised and oneDNN tensors, which XLA cannot store: errors that say what to do."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from tpu_perf.runtime.debug import where

_SPARSE = (
    "XLA has no sparse storage. Keep the tensor dense on the device, with zeros or under a mask "
    "(embeddings: sparse=False), or do this part with sparse tensors on the CPU"
)
_QUANTISED = (
    "XLA has no quantised storage. Keep integers and scales as tensors of their own (torch.int8 "
    "values), or do this part on the CPU"
)
_MKLDNN = "its layouts are oneDNN's, for Intel CPUs. Leave the tensor strided; XLA lays it out"

#: Dispatch key -> what its tensors are, and what to do instead.
_KEYS = {
    "SparsePrivateUse1": ("sparse (COO)", _SPARSE),
    "SparseCsrPrivateUse1": ("sparse (compressed)", _SPARSE),
    "QuantizedPrivateUse1": ("quantised", _QUANTISED),
}


def way_out(op: str) -> str | None:
    """What to do where an op from plain tensors would make one of another layout; else None."""
    name = op.removeprefix("aten::").partition(".")[0]
    if "sparse" in name:
        return _SPARSE
    if "quantize" in name and not name.startswith(("fake_quantize", "_fake_quantize")):
        return _QUANTISED
    return _MKLDNN if "mkldnn" in name else None


def register() -> list[torch.library.Library]:
    """Give ops without a kernel for such tensors an error of ours. The libraries are to be kept."""
    libraries = []
    for key, (kind, instead) in _KEYS.items():
        library = torch.library.Library("_", "IMPL")
        library.fallback(_refusal(kind, instead), key)
        libraries.append(library)
    return libraries


def _refusal(kind: str, instead: str) -> Any:
    def refuse(op: torch._ops.OpOverload, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"device tpu cannot run {op.name()} on {kind} tensors{where()}: {instead}."
        )

    return refuse
