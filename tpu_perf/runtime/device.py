"""Load the device: after `load()`, torch.device("tpu") works in this process."""

from __future__ import annotations

import threading
from typing import Any

import torch

from tpu_perf.runtime import jax_private, torch_private
from tpu_perf.runtime.modes import flag

_lock = threading.Lock()
_loaded = False
#: Libraries unregister their kernels when collected.
_libraries: list[Any] = []


def load() -> None:
    """Register device "tpu" with PyTorch, once per process.

    Raises EnvironmentProblem if another PrivateUse1 backend is already loaded.
    """
    global _loaded
    with _lock:
        if _loaded:
            return
        torch_private.check_privateuse1_is_free()
        jax_private.start_platform()
        from tpu_perf.runtime import (
            aten_kernels,
            autocast,
            compile_backend,
            composite_kernels,
            dispatch,
            lowerings,
            public_names,
        )

        lowerings.load_all()
        torch_private.register_backend(public_names.module())
        library = torch.library.Library("aten", "IMPL")
        for name, kernel in aten_kernels.BY_HAND.items():
            library.impl(name, kernel, "PrivateUse1")
        for name, kernel in composite_kernels.ABOVE_AUTOGRAD.items():
            library.impl(name, kernel, "AutogradPrivateUse1")
        for name, kernel in composite_kernels.BELOW_AUTOGRAD.items():
            library.impl(name, kernel, "PrivateUse1")
        dispatch.register_all(library, set(aten_kernels.BY_HAND))
        boxed = torch.library.Library("_", "IMPL")
        boxed.fallback(dispatch.fall_back, "PrivateUse1")
        _libraries.extend([library, boxed, *autocast.register_autocast()])
        torch_private.run_backward_on_calling_thread()
        public_names.finish()
        compile_backend.register()
        _loaded = True


def is_loaded() -> bool:
    return _loaded


if not flag("TPU_PERF_NO_DEVICE"):
    load()
