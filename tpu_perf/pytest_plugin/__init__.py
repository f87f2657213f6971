"""Pytest plugin: records the steps of a test, and fails it when they became slower than a baseline.

Loaded in every pytest run where tpu_perf is installed, so this module imports nothing but pytest:
what records and what judges is imported by the first test that asks for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tpu_perf.pytest_plugin.recording import StepRecorder

__all__ = ["tpu_perf_recorder"]

FIXTURE = "tpu_perf_recorder"
_MARKER = (
    "tpu_perf(max_step_time_ratio=1.1, baseline=None, force=False): the steps that the fixture "
    "tpu_perf_recorder recorded may take at most this many times as long as those of the baseline, "
    "a run directory (by default one named after the test below the ini option tpu_perf_baselines)"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tpu_perf", "step times, recorded by tpu_perf")
    group.addoption(
        "--tpu-perf-update-baseline",
        action="store_true",
        help="store what passing tests record as their baseline, instead of comparing with it",
    )
    group.addoption(
        "--tpu-perf-dir",
        metavar="DIR",
        help="where recorded runs go (default: d/tpu_perf in pytest's cache directory)",
    )
    parser.addini(
        "tpu_perf_baselines",
        "directory of baseline runs, relative to the root directory",
        default="tpu_perf_baselines",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What a mark asks of a test. `baseline`: the run directory to compare with."""

    max_step_time_ratio: float
    baseline: Path
    force: bool


def requirement_of(item: pytest.Item) -> Requirement | None:
    """The nearest mark of a test, None without one. Wrong arguments fail the test."""
    mark = item.get_closest_marker("tpu_perf")
    if mark is None:
        return None
    given = {"max_step_time_ratio": 1.1, "baseline": None, "force": False, **mark.kwargs}
    ratio, baseline = given["max_step_time_ratio"], given["baseline"]
    if mark.args or len(given) > 3 or not isinstance(ratio, int | float) or not 1 <= ratio < 1e6:
        pytest.fail(
            f"@pytest.mark.tpu_perf{mark.args}{mark.kwargs} should read "
            "tpu_perf(max_step_time_ratio=1.1, baseline=None, force=False), the ratio 1 or more",
            pytrace=False,
        )
    if FIXTURE not in getattr(item, "fixturenames", ()):
        pytest.fail(
            f"@pytest.mark.tpu_perf needs the fixture {FIXTURE}, which says what a step is",
            pytrace=False,
        )
    if baseline is None:
        baseline = Path(item.config.getini("tpu_perf_baselines")) / directory_name(item.nodeid)
    return Requirement(
        max_step_time_ratio=float(ratio),
        baseline=item.config.rootpath / baseline,
        force=bool(given["force"]),
    )


def directory_name(nodeid: str) -> str:
    """A file name for a test, the same in every session, different for different tests."""
    name = re.sub(r"[^\w.\[\]-]+", "_", nodeid.replace("/", ".").replace("::", "--"))
    if name == nodeid and len(name) <= 120:
        return name
    return f"{name[:120]}-{hashlib.sha256(nodeid.encode()).hexdigest()[:8]}"


def _run_directory(item: pytest.Item) -> Path:
    chosen = item.config.getoption("--tpu-perf-dir")
    if chosen:
        return Path(item.config.invocation_params.dir, chosen) / directory_name(item.nodeid)
    cache = getattr(item.config, "cache", None)
    folder = Path(cache.mkdir("tpu_perf")) if cache else item.config.rootpath / ".tpu_perf"
    return folder / directory_name(item.nodeid)


@pytest.fixture
def tpu_perf_recorder(request: pytest.FixtureRequest) -> Generator[StepRecorder]:
    """Records steps of the test into a run directory (see StepRecorder)."""
    from tpu_perf.pytest_plugin.recording import StepRecorder

    item: pytest.Item = request.node
    recorder = StepRecorder(_run_directory(item), item.nodeid)
    yield recorder
    recorder.finish()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """After the test's body has passed: write its run, and judge it if it is marked."""
    needed = requirement_of(item)
    result = yield
    if needed is not None:
        from tpu_perf.pytest_plugin.judging import judge_test

        recorder: StepRecorder = item.funcargs[FIXTURE]  # type: ignore[attr-defined]
        update = bool(item.config.getoption("--tpu-perf-update-baseline"))
        judge_test(item, recorder.finish(), needed, update=update)
    return result
