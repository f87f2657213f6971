"""The interpreter that runs TorchTPU: found, checked, or made."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tpu_perf.chips import tpu_devices
from tpu_perf.config.models import default_cache_dir
from tpu_perf.errors import EnvironmentProblem
from tpu_perf.record.plan import Plan

BUILD = "tpu-perf doctor --build torch_tpu"
#: The wheel that this engine knows, and what stands in for a TPU.
WHEEL = "torch_tpu==0.2.0"
PLUGIN = "xla-cpu-pjrt==0.0.1"
#: What a worker imports beside them; ranges are those of this project's own metadata.
_OF_WORKER = ("torch", "transformers", "numpy", "pydantic", "pandas", "pyarrow", "zstandard",
              "psutil", "protobuf")  # fmt: skip
#: Written last, so that an interrupted installation is not taken for a complete one.
_MARKER = "tpu_perf_complete"


def on_cpu(plan: Plan) -> bool:
    """Whether the plan's rung runs over the CPU plugin: asked for, or there is no TPU."""
    device = plan.engine_options.get("device") or ("tpu" if tpu_devices() else "cpu-plugin")
    return str(device) == "cpu-plugin"


def cache_directory() -> Path:
    """Where what this engine makes once is kept."""
    return Path(default_cache_dir()).parent / "torch_tpu"


def own_environment() -> Path:
    """Where `build` makes it."""
    return cache_directory() / WHEEL.replace("==", "-")


def find_python(given: str | None) -> Path:
    """The interpreter to use: the one that was named, else the one that `build` made, else this
    one where it has the wheel. Raises EnvironmentProblem with what to do."""
    if given is not None:
        path = Path(os.path.expanduser(given))
        if not path.is_file():
            raise EnvironmentProblem(
                f"engines.torch_tpu.python: {path} does not exist",
                hint=f"leave it out after `{BUILD}`, which makes an environment",
            )
        return path
    own = own_environment() / "bin" / "python"
    if (own_environment() / _MARKER).is_file() and own.is_file():
        return own
    if importlib.util.find_spec("torch_tpu") is not None:
        return Path(sys.executable)
    raise EnvironmentProblem(
        "no interpreter here has torch_tpu",
        hint=f"`{BUILD}` makes an environment (about 3 GB); or name one: "
        "engines: {torch_tpu: {python: PATH}}",
    )


def worker_environment(python: Path) -> Mapping[str, str]:
    """Variables with which that interpreter finds tpu_perf, and nothing else of this one; torch
    loads neither backend by itself, since the wheel has to be told of its device before."""
    variables = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    if python == Path(sys.executable):
        return variables
    package = Path(__file__).parents[2]
    digits = hashlib.sha256(str(package).encode()).hexdigest()[:12]
    directory = cache_directory() / f"path-{digits}"
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / "tpu_perf"
    if not link.is_symlink():
        temporary = directory / f"tpu_perf.{os.getpid()}"
        temporary.symlink_to(package, target_is_directory=True)
        os.replace(temporary, link)
    paths = [str(directory), os.environ.get("PYTHONPATH", "")]
    return {**variables, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def requirements() -> tuple[str, ...]:
    """What the environment needs."""
    declared = {}
    for text in importlib.metadata.requires("tpu_perf") or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            declared[requirement.name] = f"{requirement.name}{requirement.specifier}"
    return (WHEEL, PLUGIN, *(declared.get(name, name) for name in _OF_WORKER))


def build(say: Callable[[str], None]) -> Path:
    """Make the environment with pip, some minutes once. Returns its interpreter; raises
    EnvironmentProblem with pip's last words."""
    root = own_environment()
    python = root / "bin" / "python"
    wanted = "\n".join(requirements())
    marker = root / _MARKER
    if marker.is_file() and marker.read_text(encoding="utf-8") == wanted and python.is_file():
        say(f"{python} is complete")
        return python
    say(f"installing {WHEEL} and what it needs into {root}")
    marker.unlink(missing_ok=True)
    if not python.is_file():
        venv.create(root, with_pip=True)
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", *requirements()],
        stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise EnvironmentProblem(f"pip install {' '.join(requirements())} failed: {last}")
    marker.write_text(wanted, encoding="utf-8")
    return python


@dataclass(frozen=True, slots=True)
class Finding:
    """What an interpreter has: versions by package (None: missing), and a sentence if it is not
    enough."""

    python: Path
    versions: Mapping[str, str | None]
    problem: str | None


def inspect(python: Path) -> Finding:
    """Look at an interpreter's packages without importing any of them."""
    names = ["torch_tpu", "xla_cpu_pjrt", "libtpu", *_OF_WORKER]
    code = (
        "import json, importlib.metadata as m\n"
        "def v(n):\n try: return m.version(n)\n except m.PackageNotFoundError: return None\n"
        f"print(json.dumps({{n: v(n) for n in {names!r}}}))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding(python, {}, f"{python} does not run: {words}")
    versions: dict[str, Any] = json.loads(done.stdout)
    optional = "libtpu" if not tpu_devices() else "xla_cpu_pjrt"
    missing = [name for name, found in versions.items() if found is None and name != optional]
    problem = f"{python} lacks {', '.join(missing)}" if missing else None
    if versions["torch_tpu"] is not None and f"torch_tpu=={versions['torch_tpu']}" != WHEEL:
        problem = f"{python} has torch_tpu {versions['torch_tpu']}, and {WHEEL} is what was tested"
    return Finding(python, versions, problem)
