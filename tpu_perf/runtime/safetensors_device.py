"""safetensors with device="tpu": its list of devices is fixed in compiled code and lacks this one.

The smallest adaptor: a file opened for device "tpu" is opened for the CPU, from where every tensor
asked for is moved.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch


def teach(module: types.ModuleType) -> None:
    """Let `safetensors.safe_open`, and what is built on it, take device "tpu"."""
    original = module.safe_open

    @functools.wraps(original, updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **more: Any) -> Any:
        if not _is_ours(device):
            return original(filename, framework=framework, device=device, **more)
        return _Opened(original(filename, framework=framework, device="cpu", **more), device)

    module.safe_open = safe_open  # type: ignore[attr-defined]


def _is_ours(device: Any) -> bool:
    return isinstance(device, (str, torch.device)) and str(device).partition(":")[0] == "tpu"


class _Opened:
    """An open file whose tensors go to the device."""

    def __init__(self, file: Any, device: Any) -> None:
        self._file = file
        self._device = device

    def __enter__(self) -> _Opened:
        self._file.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Any:
        return self._file.__exit__(*exc)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._file.get_tensor(name).to(self._device)  # type: ignore[no-any-return]

    def get_tensors(self, *names: Any) -> dict[str, torch.Tensor]:
        found = self._file.get_tensors(*names)
        return {name: tensor.to(self._device) for name, tensor in found.items()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._file.get_slice(name), self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Slice:
    """A tensor of which only the part asked for is read, and goes to the device."""

    def __init__(self, part: Any, device: Any) -> None:
        self._part = part
        self._device = device

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._part[index].to(self._device)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)
