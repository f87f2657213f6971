"""Metrics and sentences of a rung over a mesh, from tables made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.stored_ladders import warm_timeline, write_run
from tpu_perf.analysis.collectives import collective_metrics, collective_times, moved
from tpu_perf.analysis.rung_record import RungRecord, RunTables
from tpu_perf.analysis.sharding_surprises import surprises
from tpu_perf.record.details import DETAIL_TABLES
from tpu_perf.record.metric import Metric
from tpu_perf.record.plan import ShardingPlan
from tpu_perf.record.store import load_run, table_of_rows, update_run, write_table

MIB = 2**20
#: program, instruction, kind, axes, group_size, bytes, sent_bytes, role, tensor, done, trip_count
COLLECTIVES = [
    (0, "ag", "all-gather", "fsdp", 8, 8.0 * MIB, 7.0 * MIB, "weights", "w", "ag.done", 2.0),
    (0, "ar", "all-reduce", "fsdp", 8, 8.0 * MIB, 14.0 * MIB, "gradients", "", "", 1.0),
    (0, "aa", "all-to-all", "fsdp", 8, 4.0 * MIB, 0.5 * MIB, "activations", "", "", 1.0),
]
PLACEMENTS = [
    ("w", "parameter", "[1024, 1024]", "fsdp, -", 4 * MIB, 8, 8),
    ("odd", "parameter", "[7, 5]", "-, -", MIB, 1, 8),
    ("exp_avg of odd", "optimizer_state", "[7, 5]", "-, -", MIB, 1, 8),
]


def spread_rung(tmp_path: Path, device: list[tuple[Any, ...]]) -> RungRecord:
    """A rung whose only program runs once a step; `device` are (start, end, name, lane) in ns."""
    timeline = warm_timeline(10.0)
    steps = [step for step, *_ in timeline.steps]
    timeline.events["execute"] = [(0, 1, 0, 0, step) for step in steps]
    timeline.events["device"] = [(a, b, 0, name, lane, steps[-1]) for a, b, name, lane in device]
    directory = write_run(tmp_path / "fsdp", timeline)
    rows: dict[str, list[tuple[Any, ...]]] = {"collectives": COLLECTIVES, "placements": PLACEMENTS,
            "instructions": [(0, "loop", "while", "while", "entry", "[]", 0.0, 0.0, 0.0, 1.0,
                              "()", "while")]}  # fmt: skip
    for name, table in rows.items():
        write_table(directory / f"{name}.parquet", table_of_rows(DETAIL_TABLES[name], table))
    stored = load_run(directory)
    sharding = ShardingPlan(strategy="fsdp", mesh={"fsdp": 8})
    run = replace(stored.run, plan=stored.run.plan.with_changes(sharding=sharding))
    metrics = {
        **collective_metrics(RunTables(stored)),
        "step_time": Metric(value=100e-9, unit="s", provenance="measured"),
    }
    update_run(directory, replace(run, metrics=metrics))
    stored = load_run(directory)
    return RungRecord(
        name="fsdp", directory=directory, path="fsdp", status="ok", reason=None, run=stored.run,
        tables=RunTables(stored),
    )  # fmt: skip


#: On each device: the gather is under way 0-40 beside fusions 10-30, the others stand alone.
ONE_DEVICE = [
    (0, 5, "ag"), (10, 30, "fusion.1"), (35, 40, "ag.done"), (40, 60, "ar"), (60, 70, "fusion.2"),
    (0, 100, "loop"),
]  # fmt: skip
DEVICE = [(*event, f"device {n}") for n in range(2) for event in ONE_DEVICE]


def test_counts_and_bytes_are_those_of_the_program(tmp_path: Path) -> None:
    rung = spread_rung(tmp_path, DEVICE)
    assert rung.value("collectives_per_step") == 4  # the gather lies in a loop of two
    assert rung.value("collective_bytes_per_step") == (2 * 8 + 8 + 4) * MIB
    assert rung.value("collective_sent_bytes_per_step") == (2 * 7 + 14 + 0.5) * MIB
    assert rung.value("replicated_bytes") == 2 * MIB
    first = moved(rung.measured).iloc[0]
    assert (first["kind"], first["axes"], first["role"]) == ("all-gather", "fsdp", "weights")
    assert (first["times"], first["bytes"]) == (2, 16 * MIB)


def test_a_collective_is_hidden_where_other_work_runs_beside_it(tmp_path: Path) -> None:
    rung = spread_rung(tmp_path, DEVICE)
    times = collective_times(rung.measured)
    assert list(times["lane"]) == ["device 0", "device 1"]
    # ag from 0 to 40, hidden from 10 to 30; ar from 40 to 60.
    assert list(times["exposed_ns"]) == [40, 40]
    assert list(times["hidden_ns"]) == [20, 20]
    assert rung.value("collective_exposed_time") == pytest.approx(40e-9)
    assert rung.value("collective_hidden_time") == pytest.approx(20e-9)


def test_a_run_without_device_events_does_not_know_times(tmp_path: Path) -> None:
    metric = spread_rung(tmp_path, []).metric("collective_exposed_time")
    assert metric.value is None
    assert metric.reason == "XLA's profiler reported no collective"


def test_one_device_has_no_collectives(tmp_path: Path) -> None:
    stored = load_run(write_run(tmp_path / "strict", warm_timeline(10.0)))
    for metric in collective_metrics(RunTables(stored)).values():
        assert metric.reason == "this rung runs on one device"


def test_surprises_are_named(tmp_path: Path) -> None:
    alone = [event for event in DEVICE if not event[2].startswith("fusion")]
    told = surprises(spread_rung(tmp_path, alone))
    assert len(told) == 4
    assert told[0].startswith("8.00 MiB of gradients by 1 all-reduce along fsdp, twice the traffic")
    assert told[1] == ("4.00 MiB of activations by 1 all-to-all along fsdp: activations move where "
                       "weights should")  # fmt: skip
    assert told[2].startswith("odd [7, 5] (1.00 MiB, 20.0 % of all parameters) are copied")
    assert told[3].startswith("nothing hides the collectives: 60.0 ns of 60.0 ns")
    assert "longest ar (all-reduce of gradients along fsdp, 8.00 MiB) with 20.0 ns" in told[3]


def test_what_is_hidden_is_no_surprise(tmp_path: Path) -> None:
    beside = [*DEVICE, *[(0, 100, "fusion.3", f"device {n}") for n in range(2)]]
    assert not [one for one in surprises(spread_rung(tmp_path, beside)) if "hides" in one]
