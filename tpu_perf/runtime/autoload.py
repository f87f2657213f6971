"""What `import torch` runs (entry point torch.backends): device "tpu" gets its name at once, and
JAX and the runtime when it is first used."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Any

import torch

from tpu_perf.runtime import (
    accelerate_device,
    accelerator,
    dlpack,
    pinned_memory,
    safetensors_device,
    torch_private,
    torchtitan_device,
)
from tpu_perf.runtime.import_hooks import when_imported
from tpu_perf.runtime.random_numbers import GENERATOR

#: Set to 0: `import torch` leaves the device alone. Set to 1: it takes the name "tpu" also on a
#: machine with a TPU where TorchTPU is installed, which otherwise has it there.
VARIABLE = "TPU_PERF_AUTOLOAD"


#: What torch looks for in every backend's module, and this one does not have.
_NOT_HERE = frozenset({"Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen",
                       "WrapperFxCodegen", "DeviceOpOverrides"})  # fmt: skip


class DeviceModule(types.ModuleType):
    """torch.tpu before the runtime is loaded: what torch asks of every backend without the user
    having named it (seeds, availability) is answered here; any other name loads the runtime."""

    def __getattr__(self, name: str) -> Any:
        loaded = self.__class__ is not DeviceModule
        if loaded or name.startswith("__") or name in _NOT_HERE:
            raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")
        self._lazy_init()
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        self._lazy_init()
        return list(object.__dir__(self))

    @staticmethod
    def _lazy_init() -> None:
        """Torch calls this when the device first appears in a call, and again in a forked child."""
        from tpu_perf.runtime import device

        device.load()

    #: Torch saves and restores the generator's state around a checkpoint once this is True.
    _initialized = False

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return False

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Nothing to wait for before first use."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    @staticmethod
    def _is_in_bad_fork() -> bool:
        from tpu_perf.runtime.forking import in_bad_fork

        return in_bad_fork()

    @staticmethod
    def manual_seed(seed: int) -> None:
        """Start the default generator's stream anew."""
        GENERATOR.manual_seed(seed)

    manual_seed_all = manual_seed

    @staticmethod
    def initial_seed() -> int:
        return GENERATOR.initial_seed

    @staticmethod
    def get_rng_state(device: Any = "tpu") -> torch.Tensor:
        """The default generator's state, a CPU uint8 tensor."""
        return GENERATOR.get_state()

    @staticmethod
    def set_rng_state(new_state: torch.Tensor, device: Any = "tpu") -> None:
        GENERATOR.set_state(new_state)


MODULE = DeviceModule("torch.tpu")
_registered = False


def register() -> None:
    """Name the device in this process, once; nothing heavy is imported.

    Raises EnvironmentProblem if another PrivateUse1 backend is already loaded.
    """
    global _registered
    if not _registered:
        torch_private.register_backend(MODULE)
        torch_private.load_at_first_op(MODULE._lazy_init)
        pinned_memory.register()
        accelerator.install()
        dlpack.install()
        when_imported("safetensors", safetensors_device.teach)
        when_imported("accelerate.utils.dataclasses", accelerate_device.teach)
        when_imported("torchtitan.distributed.compile", torchtitan_device.teach)
        _registered = True


def entry_point() -> None:
    """Called by `import torch`."""
    told = os.environ.get(VARIABLE, "").strip().lower()
    if told in ("0", "false", "no", "off"):
        return
    if importlib.util.find_spec("torch_tpu") is not None and _beside_a_tpu():
        if told not in ("1", "true", "yes", "on"):
            return  # TorchTPU has the device on this machine
        _keep_torch_tpu_out()
    register()


def _beside_a_tpu() -> bool:
    from tpu_perf.chips.presence import tpu_devices  # costs more than all else here

    return bool(tpu_devices())


def _keep_torch_tpu_out() -> None:
    """Answer the import by which torch would load TorchTPU next, and which would fail: a process
    has room for one such backend."""
    if "torch_tpu._loader" not in sys.modules:
        stand_in = types.ModuleType("torch_tpu._loader", f"Kept out by {VARIABLE}=1.")
        stand_in.load = lambda: None  # type: ignore[attr-defined]
        sys.modules["torch_tpu._loader"] = stand_in
