"""TorchTPU without a TPU: its wheel over a PJRT plugin for the CPU.

The wheel asks libtpu for the plugin's path and the PCI bus for a TPU; both get an answer that
leads to the CPU plugin. Compiled programs need one PJRT call that this plugin lacks; a shim of a
few lines of C++ adds it, built where there is a compiler.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import tempfile
from pathlib import Path

from tpu_perf.engines.cpu import cxx_compiler
from tpu_perf.engines.torch_tpu.environment import cache_directory
from tpu_perf.errors import EnvironmentProblem

#: What every output of a run over the plugin carries.
LABEL = (
    "TorchTPU's released wheel over a PJRT plugin for the CPU (xla-cpu-pjrt), not a TPU: times are "
    "XLA:CPU's; programs, batches and cache requests are those that TorchTPU makes"
)
ATTENTION = (
    "attention by its math formula (SDPBackend.OVERRIDEABLE, MATH): TorchTPU's flash attention is "
    "a kernel for TPUs, which a CPU cannot run"
)
CUMSUM = (
    "cumsum as a sum over a triangle: TorchTPU's is chlo.scan, which the plugin's StableHLO "
    "(1.13.3) does not know"
)
_SHIM = Path(__file__).with_name("pjrt_shim.cc")


def plugin_library() -> Path:
    """The shared library of the CPU plugin. Raises EnvironmentProblem where it is missing."""
    found = importlib.util.find_spec("xla_plugins")
    for root in (found.submodule_search_locations or ()) if found is not None else ():
        library = Path(root) / "xla_cpu_pjrt" / "xla_cpu_pjrt.so"
        if library.is_file():
            return library
    raise EnvironmentProblem(
        "this environment lacks the PJRT plugin for the CPU (wheel xla-cpu-pjrt)",
        hint="`tpu-perf doctor --build torch_tpu` makes an environment that has it",
    )


def shim_library(plugin: Path) -> Path | None:
    """The shim for this plugin, built at the first call; None without a C++ compiler."""
    header = plugin.parent / "include" / "pjrt_c_api.h"
    source = _SHIM.read_bytes() + header.read_bytes()
    name = f"pjrt_shim-{hashlib.sha256(source).hexdigest()[:16]}.so"
    library = cache_directory() / name
    if library.is_file():
        return library
    compiler = cxx_compiler()
    if compiler is None:
        return None
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=library.parent, suffix=".so", delete=False) as made:
        command = [compiler, "-shared", "-fPIC", "-O1", "-std=c++17", f"-I{header.parent}"]
        done = subprocess.run(
            [*command, str(_SHIM), "-o", made.name, "-ldl"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            os.unlink(made.name)
            raise EnvironmentProblem(f"the PJRT shim does not build: {done.stderr.strip()[-500:]}")
        os.chmod(made.name, 0o755)
        os.replace(made.name, library)
    return library


def set_environment() -> tuple[str, bool]:
    """Point the wheel to the plugin, before it or torch is imported. Returns the path that
    TPU_LIBRARY_PATH must keep, and whether compiled programs can run (the shim is there)."""
    plugin = plugin_library()
    shim = shim_library(plugin)
    path = str(shim or plugin)
    os.environ.update(
        TPU_LIBRARY_PATH=path,
        TPU_PERF_PJRT_PLUGIN=str(plugin),
        TPU_SKIP_MDS_QUERY="1",  # no cloud metadata server here
    )
    return path, shim is not None


def replace_cumsum() -> None:
    """Give device "tpu" a cumsum of ops that the plugin knows, in place of TorchTPU's own."""
    import torch

    def cumsum(self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        if dtype is None:
            dtype = self.dtype if self.dtype.is_floating_point else torch.int64
        if self.dim() == 0:
            return self.to(dtype)
        moved = self.to(dtype).movedim(dim, -1)
        index = torch.arange(moved.shape[-1], device=self.device)
        below = (index[:, None] >= index[None, :]).to(dtype)
        return (moved.unsqueeze(-2) * below).sum(-1).movedim(-1, dim)

    library = torch.library.Library("aten", "IMPL")
    library.impl("cumsum", cumsum, "PrivateUse1", allow_override=True)
    _KEPT.append(library)


#: A torch.library.Library takes its kernels back when it is collected.
_KEPT: list[object] = []
