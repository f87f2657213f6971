"""Load the device: after `load()`, torch.device("tpu") works in this process."""

from __future__ import annotations

import threading
from typing import Any

import torch

from tpu_perf.runtime import autoload, forking, jax_private, torch_private
from tpu_perf.runtime.modes import flag

_lock = threading.RLock()
_loaded = False
_loading = False
#: Libraries unregister their kernels when collected.
_libraries: list[Any] = []


def load() -> None:
    """Register device "tpu" with PyTorch, once per process.

    Raises EnvironmentProblem if another PrivateUse1 backend is already loaded.
    """
    global _loaded, _loading
    with _lock:
        forking.refuse_in_child()
        if _loaded or _loading:
            return
        _loading = True
        try:
            _load()
        finally:
            _loading = False
        _loaded = True


def _load() -> None:
    autoload.register()
    jax_private.start_platform()
    from tpu_perf.runtime import (
        aten_kernels,
        autocast,
        compile_backend,
        composite_kernels,
        connectionist_kernels,
        data_dependent,
        dispatch,
        foreign_layouts,
        linear_algebra_kernels,  # noqa: F401 - adds to aten_kernels.BY_HAND
        lowerings,
        meta_kernels,
        meta_linear_algebra,  # noqa: F401 - registers its forms
        process_group,
        public_names,
        random_kernels,  # noqa: F401 - the same
        storages,
        torch_profiler,
        whole_ops,
    )

    lowerings.load_all()
    storages.install()
    public_names.install(autoload.MODULE)
    library = torch.library.Library("aten", "IMPL")
    by_hand = {
        **aten_kernels.BY_HAND, **data_dependent.BY_HAND, **connectionist_kernels.BY_HAND
    }  # fmt: skip
    for name, kernel in by_hand.items():
        library.impl(name, kernel, "PrivateUse1")
    for name, kernel in composite_kernels.ABOVE_AUTOGRAD.items():
        library.impl(name, kernel, "AutogradPrivateUse1")
    for name, kernel in composite_kernels.BELOW_AUTOGRAD.items():
        library.impl(name, kernel, "PrivateUse1")
    dispatch.register_all(library, set(by_hand))
    torch_private.end_of_lazy_loading()
    boxed = torch.library.Library("_", "IMPL")
    boxed.fallback(dispatch.fall_back, "PrivateUse1")
    shapes = torch.library.Library("aten", "IMPL", "Meta")
    meta_kernels.register(shapes)
    _libraries.extend([
        library, boxed, shapes, whole_ops.register_metas(), *autocast.register_autocast(),
        *foreign_layouts.register(),
    ])  # fmt: skip
    torch_private.lay_out_metas_as_asked()
    torch_private.run_backward_on_calling_thread()
    torch_private.keep_errors_of_backward()
    torch_private.print_from_host()
    compile_backend.register()
    process_group.register()
    torch_profiler.install()
    forking.watch_forks()


def is_loaded() -> bool:
    return _loaded


if not flag("TPU_PERF_NO_DEVICE"):
    load()
