"""Compares what a test recorded with its baseline, by the statistics of `tpu-perf gate`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tpu_perf.analysis.gate import GateCheck, gate
from tpu_perf.errors import TpuPerfError
from tpu_perf.export.comparison import rows
from tpu_perf.pytest_plugin import Requirement

HOW_TO_UPDATE = "run pytest with --tpu-perf-update-baseline on this machine to record one"


def judge_test(item: pytest.Item, run: Path | None, needed: Requirement, *, update: bool) -> None:
    """Fail the test if it is slower than allowed, or if that cannot be known at all.

    What noise hides is a warning: the test passes, since nothing is shown against it.
    """
    if run is None:
        pytest.fail("this test is marked tpu_perf and recorded no step", pytrace=False)
    if update:
        _store(run, needed.baseline)
        item.add_report_section("call", "tpu_perf", f"stored as baseline {needed.baseline}")
        return
    if not needed.baseline.exists():
        pytest.fail(f"there is no baseline {needed.baseline}; {HOW_TO_UPDATE}", pytrace=False)
    limit = needed.max_step_time_ratio - 1
    try:
        found = gate([needed.baseline], run, limit=limit, force=needed.force)
    except TpuPerfError as error:
        told = error.message.replace("\n  ", "\n    ")
        pytest.fail(f"{told}\n  {HOW_TO_UPDATE}, or mark it force=True", pytrace=False)
    (check,) = found.checks
    change = check.changes[0]
    item.user_properties.append(("tpu_perf_step_time_ratio", change.change.value))
    told = _told(check, needed)
    item.add_report_section("call", "tpu_perf", f"{told}\nrun: {run}")
    if check.state in ("regressed", "too few samples", "unknown"):
        moved = [" ".join(cells) for cells in rows.moved_rows(found.comparisons[0].rungs[0], 5)]
        pytest.fail("\n  ".join([told, *moved, f"run: {run}"]), pytrace=False)
    if check.state == "not resolved":
        item.warn(pytest.PytestWarning(f"{item.nodeid}: {told}"))


def _told(check: GateCheck, needed: Requirement) -> str:
    change = check.changes[0]
    figures = f"{rows.value('step_time', change.base)} -> {rows.value('step_time', change.new)}"
    bounds = rows.bounds(change.change)
    return (
        f"step time {check.state}: {figures}, {rows.percentage(change.change)}"
        f"{f' (95 %: {bounds})' if bounds else ''}, at most {needed.max_step_time_ratio:g}x of "
        f"{needed.baseline} is allowed; {check.because}"
    )


def _store(run: Path, baseline: Path) -> None:
    """Replace the baseline by a copy of the run."""
    baseline.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(baseline, ignore_errors=True)
    shutil.copytree(run, baseline)
