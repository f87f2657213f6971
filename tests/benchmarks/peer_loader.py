"""Load TorchTPU's wheel on a machine that has no TPU, over a PJRT plugin for the CPU.

Runs in the peer's own environment. The wheel asks libtpu for the plugin's path and the PCI bus
for a TPU; both get an answer that leads to the CPU plugin.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path


def cpu_plugin() -> Path:
    """The shared library of the CPU plugin, from its wheel."""
    found = importlib.util.find_spec("xla_plugins")
    for root in (found.submodule_search_locations or ()) if found is not None else ():
        library = Path(root) / "xla_cpu_pjrt" / "xla_cpu_pjrt.so"
        if library.is_file():
            return library
    raise ImportError("the peer's environment lacks the wheel xla-cpu-pjrt")


def load_torch_tpu() -> None:
    """Make device "tpu" TorchTPU's. Call before anything imports torch."""
    plugin = str(cpu_plugin())
    os.environ.update(
        TPU_LIBRARY_PATH=plugin,
        TPU_SKIP_MDS_QUERY="1",  # no cloud metadata server here
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",  # it must not load before it has been told
    )
    libtpu = importlib.import_module("libtpu")

    def keep_plugin() -> None:
        os.environ["TPU_LIBRARY_PATH"] = plugin

    vars(libtpu)["configure_library_path"] = keep_plugin
    importlib.import_module("torch_tpu")
    keep_plugin()
    loader = importlib.import_module("torch_tpu._loader")
    loader.hardware.get_tpu_device_count = lambda: 1
    loader.load()
