"""The reading side starts quickly anywhere: it loads no framework."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.stored_ladders import two_rungs

SCRIPT = """
import json, sys
from pathlib import Path
from rich.console import Console
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.export.interface import EXPORTERS
from tpu_perf.export.terminal import render_ladder
directory = Path(sys.argv[1])
complete(directory)
exporters = [exporter for _, exporter in EXPORTERS.items() if exporter.needs is None]
written = [str(exporter.write(directory)) for exporter in exporters]
render_ladder(directory, Console(stderr=True))
print(json.dumps({"written": written, "modules": sorted(sys.modules)}))
"""


def test_reading_a_ladder_loads_no_measuring_package(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(two_rungs(tmp_path))],
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(result.stdout)
    loaded = {module.split(".")[0] for module in answer["modules"]}
    assert not loaded & {"torch", "jax", "jaxlib", "libtpu", "transformers"}
    ours = {".".join(module.split(".")[:2]) for module in answer["modules"] if "tpu_perf" in module}
    measuring = {"ladder", "rungs", "workloads", "engines", "runtime", "recorder"}
    assert not ours & {f"tpu_perf.{package}" for package in measuring}
    assert answer["written"]
    assert all(Path(path).stat().st_size for path in answer["written"])
