"""Loading device "tpu" through torch's entry point: `import torch` is enough, and costs little."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tpu_perf

ROOT = Path(tpu_perf.__file__).parent.parent


def _installed(where: Path, name: str, groups: dict[str, dict[str, str]]) -> Path:
    """A folder that looks to Python like an installed distribution with these entry points."""
    info = where / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, entry_points in groups.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entry_points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return where


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """Our distribution as pyproject.toml describes it, whatever is installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return _installed(tmp_path / "ours", "tpu_perf", project["entry-points"])


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A stand-in for TorchTPU: its loader takes the name "tpu" and says so."""
    where = _installed(
        tmp_path / "theirs",
        "torch_tpu",
        {"torch.backends": {"torch_tpu": "torch_tpu._loader:load"}},
    )
    (where / "torch_tpu").mkdir()
    (where / "torch_tpu" / "__init__.py").touch()
    (where / "torch_tpu" / "_loader.py").write_text(
        "import types, torch\n"
        "def load():\n"
        "    torch.utils.rename_privateuse1_backend('tpu')\n"
        "    torch._register_device_module('tpu', types.ModuleType('torch_tpu.device'))\n"
    )
    return where


def _python(code: str, *paths: Path, **variables: str) -> str:
    """What a fresh interpreter prints, or the last line of its complaint."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TPU_", "TORCH_"))}
    path = os.pathsep.join([*map(str, paths), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=paths[0],
        env={**environment, **variables, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    return done.stdout.strip() if not done.returncode else done.stderr.strip()


def test_import_torch_is_enough_and_the_runtime_loads_at_first_use(ours: Path) -> None:
    code = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.checkpoint import checkpoint

assert torch.device("tpu").type == "tpu"
assert torch.accelerator.current_accelerator(check_available=True).type == "tpu"
torch.manual_seed(3)
with torch.random.fork_rng(), torch.autocast("cpu"):
    x = torch.ones(2, 2, requires_grad=True)
    checkpoint(torch.nn.Linear(2, 2), x, use_reentrant=False).sum().backward()
(batch,) = next(iter(DataLoader(TensorDataset(torch.ones(4)), batch_size=2, pin_memory=True)))
assert batch.is_pinned() and not x.is_pinned()
torch.accelerator.synchronize()
assert torch.accelerator.memory_stats() == {} and not torch.tpu.is_initialized()
assert "jax" not in sys.modules and "tpu_perf.runtime.device" not in sys.modules

drawn = torch.rand(3, device="tpu")
assert "jax" in sys.modules and torch.tpu.is_initialized()
torch.manual_seed(3)
assert torch.equal(drawn, torch.rand(3, device="tpu"))
assert torch.tpu.eager_mode is torch.tpu.EagerMode.DEFER_NEVER
import tpu_perf.runtime.device
print((torch.ones(2).tpu() + 1).tolist(), torch.accelerator.memory_allocated())
"""
    assert _python(code, ours) == "[2.0, 2.0] 12"


def test_compile_knows_the_backend_before_the_device_was_used(ours: Path) -> None:
    code = """
import sys, torch
double = torch.compile(lambda x: x * 2, backend="tpu", fullgraph=True)
assert "jax" not in sys.modules and "tpu" in torch._dynamo.list_backends()
print(double(torch.ones(2, device="tpu")).tolist(), double(torch.ones(3)).tolist())
again = torch.compile(lambda x: x * 3, backend="tpu")
print(again(torch.ones(2, device="tpu")).tolist())
"""
    assert _python(code, ours) == "[2.0, 2.0] [2.0, 2.0, 2.0]\n[3.0, 3.0]"


def test_an_op_called_by_its_overload_loads_the_runtime_too(ours: Path) -> None:
    code = """
import sys, torch
x = torch.ops.aten.full.default([2], 3.0, device=torch.device("tpu"))
print(x.tolist())
"""
    assert _python(code, ours) == "[3.0, 3.0]"


@pytest.mark.parametrize("variable", ["TORCH_DEVICE_BACKEND_AUTOLOAD", "TPU_PERF_AUTOLOAD"])
def test_loading_can_be_turned_off(ours: Path, variable: str) -> None:
    code = "import torch; print(torch._C._get_privateuse1_backend_name())"
    assert _python(code, ours, **{variable: "0"}) == "privateuseone"


_BESIDE_A_TPU = """
import sys
import tpu_perf.chips.presence
tpu_perf.chips.presence.tpu_devices = lambda *bus: {devices}
import torch
print(type(torch.tpu).__module__, torch.tpu.__name__)
"""


def test_torch_tpu_has_the_device_on_a_machine_with_a_tpu(ours: Path, theirs: Path) -> None:
    beside = _BESIDE_A_TPU.format(devices=["TPU v5e"])
    assert _python(beside, ours, theirs) == "builtins torch_tpu.device"
    assert _python(beside, theirs, ours) == "builtins torch_tpu.device"
    assert _python(beside, ours) == "tpu_perf.runtime.autoload torch.tpu"
    told_otherwise = _python(beside, ours, theirs, TPU_PERF_AUTOLOAD="1")
    assert told_otherwise == "tpu_perf.runtime.autoload torch.tpu"


def test_another_backend_that_came_first_is_named(ours: Path, theirs: Path) -> None:
    beside = _BESIDE_A_TPU.format(devices=["TPU v5e"])
    told = _python(beside, theirs, ours, TPU_PERF_AUTOLOAD="1")
    assert "another PyTorch backend is already loaded as device 'tpu'" in told
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in told
