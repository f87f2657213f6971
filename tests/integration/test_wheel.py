"""What a wheel of this project brings: reports and the dashboard work with no checkout near."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stored_ladders import two_rungs
from tpu_perf.analysis.ladder_metrics import complete

ROOT = Path(__file__).parents[2]
#: Runs the installed app in Streamlit's own harness and says what the page shows.
APP = """
import sys
from pathlib import Path
from streamlit.testing.v1 import AppTest
from tpu_perf.cli.dashboard_server import app_file
sys.argv = ["app.py", sys.argv[1]]
shown = AppTest.from_file(str(app_file()), default_timeout=120).run()
assert not shown.exception, shown.exception
print(app_file())
bodies = [str(getattr(getattr(one, "proto", None), "body", "")) for one in shown.main]
print([title.value for title in shown.title], any("ladder=good" in body for body in bodies))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a wheel, built from the sources alone, was installed into."""
    place = tmp_path_factory.mktemp("wheel")
    sources = place / "sources"
    for name in ("tpu_perf", "dashboards"):
        shutil.copytree(
            ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", place, sources], check=True)
    wheel = next(place.glob("*.whl"))
    target = place / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], check=True)
    shutil.rmtree(sources)
    return target


def _run(installed: Path, *arguments: str | Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed), "TPU_PERF_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=installed.parent, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_dashboard_opens(installed: Path, tmp_path: Path) -> None:
    complete(two_rungs(tmp_path / "runs/good"))
    app, title = _run(installed, "-c", APP, tmp_path / "runs").splitlines()
    assert Path(app) == installed / "tpu_perf_dashboards/app.py"
    assert title == "['Ladders'] True"


def test_a_report_is_written(installed: Path, tmp_path: Path) -> None:
    complete(two_rungs(tmp_path / "good"))
    _run(installed, "-m", "tpu_perf", "report", tmp_path / "good", "--html", "--out", tmp_path)
    page = next(tmp_path.glob("*.html")).read_text()
    assert "whole_step" in page
    assert "<style" in page
    assert str(ROOT) not in page
