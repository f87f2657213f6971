"""Time by module: every nanosecond once, at the module that a site names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stored_captures import write_capture
from tpu_perf.analysis.measured_ops import measured_ops
from tpu_perf.analysis.module_tree import ROOT, Node, device_rows, host_rows, module_tree
from tpu_perf.analysis.run_details import OUTSIDE, UNKNOWN, RunDetails
from tpu_perf.analysis.rung_record import RunTables
from tpu_perf.record.store import load_run


def under(nodes: tuple[Node, ...], node: str) -> float:
    """Seconds of a node and of all below it."""
    own = sum(one.own_s for one in nodes if one.id == node)
    return own + sum(under(nodes, one.id) for one in nodes if one.parent == node)


def test_host_time_by_module(tmp_path: Path) -> None:
    stored = load_run(write_capture(tmp_path / "run"))
    nodes = module_tree(host_rows(RunTables(stored)), RunDetails(stored))
    # Dispatches of a step: mm 2 ms in blocks.0.linear, gelu 3 ms in blocks.0, the optimizer 6 ms.
    assert under(nodes, ROOT) == pytest.approx(11e-3)
    assert under(nodes, "step/blocks/0") == pytest.approx(5e-3)
    assert under(nodes, "step/blocks/0/linear") == pytest.approx(2e-3)
    assert under(nodes, f"step/{OUTSIDE}") == pytest.approx(6e-3)
    leaves = {node.label: node.parent for node in nodes if node.is_op}
    assert leaves["gelu"] == "step/blocks/0"
    known = {node.id for node in nodes}
    assert all(node.parent in known for node in nodes if node.id != ROOT)


def test_device_time_by_module_is_that_of_the_profiled_steps(tmp_path: Path) -> None:
    stored = load_run(write_capture(tmp_path / "run"))
    tables, details = RunTables(stored), RunDetails(stored)
    rows = device_rows(measured_ops(tables, details, "causal"))
    assert rows is not None
    nodes = module_tree(rows, details)
    # dot.1 20 ms, fusion.2 10 ms, fusion.7 15 ms.
    assert under(nodes, ROOT) == pytest.approx(45e-3)
    assert under(nodes, "step/blocks/0/linear") == pytest.approx(20e-3)


def test_without_device_events_there_is_no_device_time(tmp_path: Path) -> None:
    stored = load_run(write_capture(tmp_path / "run", device_events=False))
    assert device_rows(measured_ops(RunTables(stored), RunDetails(stored), "causal")) is None


def test_without_details_modules_are_unknown(tmp_path: Path) -> None:
    stored = load_run(write_capture(tmp_path / "run", details=False))
    nodes = module_tree(host_rows(RunTables(stored)), RunDetails(stored))
    assert [node.label for node in nodes if node.parent == ROOT] == [UNKNOWN]
    assert under(nodes, ROOT) == pytest.approx(11e-3)
