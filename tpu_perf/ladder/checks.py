"""The checks of `tpu-perf doctor`: each looks at one thing and says what it found."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from tpu_perf.chips import tpu_devices
from tpu_perf.config.models import default_cache_dir
from tpu_perf.engines.cpu import cxx_compiler
from tpu_perf.engines.torch_tpu import environment
from tpu_perf.errors import EnvironmentProblem

Verdict = Literal["ok", "warn", "fail"]
_MINIMUM_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table."""

    name: str
    verdict: Verdict
    finding: str


def run_checks() -> list[Check]:
    checks: list[Callable[[], list[Check]]] = [
        _python,
        _packages,
        _platform,
        _compiler,
        _tpu,
        _cache_directory,
        _privateuse1,
        _torch_tpu,
    ]
    return [check for run in checks for check in run()]


def _python() -> list[Check]:
    fine = sys.version_info >= _MINIMUM_PYTHON
    wanted = ".".join(map(str, _MINIMUM_PYTHON))
    told = f"{platform.python_version()} (3.11 or newer is needed)".replace("3.11", wanted)
    return [Check("python", "ok" if fine else "fail", told)]


def _packages() -> list[Check]:
    """Each dependency against the range that this installation of tpu_perf declares."""
    found = []
    for text in importlib.metadata.requires("tpu_perf") or []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        wanted = str(requirement.specifier)
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            found.append(Check(requirement.name, "fail", f"not installed; {wanted} is needed"))
            continue
        inside = requirement.specifier.contains(version, prereleases=True)
        told = f"{version}" if inside else f"{version} is outside the tested range {wanted}"
        found.append(Check(requirement.name, "ok" if inside else "fail", told))
    return found


def _platform() -> list[Check]:
    fine = sys.platform == "linux"
    told = f"{platform.system()} {platform.machine()}"
    return [Check("platform", "ok" if fine else "warn", told if fine else f"{told}: not tested")]


def _compiler() -> list[Check]:
    compiler = cxx_compiler()
    if compiler is None:
        told = "none found: the rung cpu_inductor will be skipped (install g++ or set CXX)"
        return [Check("C++ compiler", "warn", told)]
    return [Check("C++ compiler", "ok", compiler)]


def _tpu() -> list[Check]:
    """Looks at the PCI bus only: starting libtpu would take the chips from a running job."""
    devices = tpu_devices()
    if not devices:
        return [Check("TPU", "ok", 'none on this machine: device "tpu" runs on XLA:CPU')]
    told = f"{len(devices)} on the PCI bus: {', '.join(sorted(set(devices)))}"
    try:
        importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        return [Check("TPU", "fail", f"{told}; libtpu is not installed")]
    return [Check("TPU", "ok", told)]


def _cache_directory() -> list[Check]:
    path = Path(default_cache_dir())
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        told = f"{path} cannot be written ({error.strerror}): set cache_dir in the ladder file"
        return [Check("program cache", "warn", told)]
    return [Check("program cache", "ok", str(path))]


def _privateuse1() -> list[Check]:
    """Whether another backend takes torch's PrivateUse1 when torch is imported."""
    code = (
        "import torch; name = torch._C._get_privateuse1_backend_name(); "
        "print(name, type(getattr(torch, name, None)).__module__)"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
    except subprocess.TimeoutExpired:
        return [Check("PrivateUse1", "warn", "importing torch took more than two minutes")]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [Check("torch import", "fail", last)]
    name, _, module = done.stdout.strip().splitlines()[-1].partition(" ")
    if name == "privateuseone":
        return [Check("PrivateUse1", "ok", "free")]
    if module.startswith("tpu_perf."):
        return [Check("PrivateUse1", "ok", 'ours: `import torch` is enough for device "tpu"')]
    told = f"taken by the backend {name!r}; set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to turn it off"
    return [Check("PrivateUse1", "warn", told)]


def _torch_tpu() -> list[Check]:
    """Whether the engine torch_tpu can run, and on what. Nothing of it is imported here."""
    name = "engine torch_tpu"
    try:
        python = environment.find_python(None)
    except EnvironmentProblem as problem:
        return [Check(name, "warn", f"{problem.message}: {problem.hint}")]
    found = environment.inspect(python)
    if found.problem is not None:
        return [Check(name, "warn", f"{found.problem}; `{environment.BUILD}` makes one that fits")]
    versions = ", ".join(
        f"{package} {found.versions[package]}" for package in ("torch_tpu", "torch")
    )
    device = "the TPU" if tpu_devices() else "a PJRT plugin for the CPU, not a TPU"
    told = f"{versions} in {python}; runs on {device}"
    if not tpu_devices() and cxx_compiler() is None:
        return [Check(name, "warn", f"{told}; compiled rungs need a C++ compiler for a PJRT shim")]
    return [Check(name, "ok", told)]
