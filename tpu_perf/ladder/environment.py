"""The machine and the software a run happened on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import subprocess
from pathlib import Path

import psutil

from tpu_perf.record.run import Environment

_PACKAGES = (
    "tpu_perf",
    "torch",
    "jax",
    "jaxlib",
    "libtpu",
    "transformers",
    "numpy",
    "pyarrow",
    "pandas",
)
_VARIABLES = ("XLA_FLAGS", "JAX_PLATFORMS", "LIBTPU_INIT_ARGS", "OMP_NUM_THREADS", "CXX")
_PREFIXES = ("TORCH_TPU_", "TPU_")


def describe_environment(device_kind: str, device_count: int) -> Environment:
    """Everything that makes two runs comparable or not."""
    return Environment(
        hostname=socket.gethostname(),
        os=platform.platform(),
        cpu=_cpu_name(),
        cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        versions=_versions(),
        device_kind=device_kind,
        device_count=device_count,
        git_commit=_git_commit(),
        variables={
            name: value
            for name, value in sorted(os.environ.items())
            if name in _VARIABLES or name.startswith(_PREFIXES)
        },
    )


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git_commit() -> str | None:
    """The commit of the directory the command runs in, None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
