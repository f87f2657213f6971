"""The list of packages in pyproject.toml is what the tree holds."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_package_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "tpu_perf").rglob("__init__.py")
    }
    assert set(listed) == found | {"tpu_perf_dashboards"}
    assert (ROOT / "dashboards" / "__init__.py").exists()
