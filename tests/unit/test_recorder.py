"""What the recorder keeps of the rows it is given."""

from __future__ import annotations

import gc
import threading

import pytest

from tpu_perf.recorder import Recorder
from tpu_perf.recorder.packing import (
    dispatch_event,
    execute_event,
    memory_event,
    name_number,
    op_event,
)

ADD, GRAPH = name_number("aten::add.Tensor"), name_number("graph")


def test_an_op_is_a_dispatch_and_an_execution() -> None:
    recorder = Recorder()
    recorder.execute(execute_event(31, 38, 9, 2, 4))
    recorder.dispatch(dispatch_event(30, 40, GRAPH, 9, 4))
    recorder.op(op_event(10, 12, 17, 20, ADD, 7, 3, 4))
    assert recorder.event_count("dispatch") == recorder.event_count("execute") == 2
    tables = recorder.drain()
    assert tables["dispatch"].to_pylist() == [
        {
            "t_start_ns": 10,
            "t_end_ns": 20,
            "op": "aten::add.Tensor",
            "program": 7,
            "step": 4,
            "site": -1,
            "thread": -1,
        },
        {
            "t_start_ns": 30,
            "t_end_ns": 40,
            "op": "graph",
            "program": 9,
            "step": 4,
            "site": -1,
            "thread": -1,
        },
    ]
    assert tables["execute"].to_pylist() == [
        {"t_start_ns": 12, "t_end_ns": 17, "program": 7, "tier": 3, "step": 4},
        {"t_start_ns": 31, "t_end_ns": 38, "program": 9, "tier": 2, "step": 4},
    ]
    assert recorder.event_count("dispatch") == 2
    assert recorder.drain()["dispatch"].num_rows == 0


def test_memory_keeps_large_and_negative_numbers() -> None:
    recorder = Recorder()
    recorder.memory(memory_event(5, -(1 << 40), 1 << 41, -1, 77))
    assert recorder.drain()["memory"].to_pylist() == [
        {
            "t_ns": 5,
            "delta_bytes": -(1 << 40),
            "live_bytes": 1 << 41,
            "step": -1,
            "buffer": 77,
            "site": -1,
        }
    ]


@pytest.mark.parametrize(("sink", "row", "lost"), [
    ("op", op_event(1, 2, 3, 4, ADD, 0, 0, 0), 2 * 3),
    ("memory", memory_event(1, 8, 8, 0, 1), 3),
    ("sync", (1, 2, "item()", 0), 3),
])  # fmt: skip
def test_what_does_not_fit_is_counted(sink: str, row: object, lost: int) -> None:
    recorder = Recorder(pending_limit=5)
    for _ in range(8):
        getattr(recorder, sink)(row)
    tables = recorder.drain()
    assert recorder.dropped_events == lost
    kinds = ("dispatch", "execute") if sink == "op" else (sink,)
    assert [tables[kind].num_rows for kind in kinds] == [5] * len(kinds)


def test_hot_events_do_not_make_the_collector_run() -> None:
    recorder = Recorder()
    gc.collect()
    before = gc.get_stats()[0]["collections"]
    for i in range(20_000):
        recorder.op(op_event(i, i, i, i, ADD, 0, 0, 0))
        recorder.memory(memory_event(i, 8, 8, 0, i))
    assert gc.get_stats()[0]["collections"] - before <= 1


def test_a_ring_keeps_the_newest_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings are per kind, and hold through several settles and a drain."""
    monkeypatch.setattr("tpu_perf.recorder.recorder.SETTLE_AT", 4)
    recorder = Recorder(ring=10)
    for step in range(7):
        recorder.begin_step(step)
        for event in range(5):
            recorder.sync((step, step, f"{event}", step))
        recorder.memory(memory_event(step, 8, 8, step, step))
        recorder.end_step()
    tables = recorder.drain()
    kept = tables["sync"].to_pylist()
    assert [(row["step"], row["reason"]) for row in kept] == [
        (step, str(event)) for step in (5, 6) for event in range(5)
    ]
    assert tables["memory"].num_rows == 7
    assert recorder.dropped_events == 7 * 5 - 10
    assert recorder.event_count("sync") == 35


def test_a_ring_of_ops_keeps_both_halves_of_each() -> None:
    recorder = Recorder(ring=3)
    for at in range(8):
        recorder.op(op_event(at, at, at, at, ADD, at, 0, 0))
    tables = recorder.drain()
    assert tables["dispatch"]["program"].to_pylist() == [5, 6, 7]
    assert tables["execute"]["program"].to_pylist() == [5, 6, 7]
    assert recorder.dropped_events == 2 * 5


def test_ops_and_single_dispatches_share_a_ring_in_the_order_of_time() -> None:
    """What is newest is told by time, not by which sink took it."""
    recorder = Recorder(ring=4)
    for at in range(0, 10, 2):
        recorder.op(op_event(at, at, at, at, ADD, at, 0, 0))
        recorder.dispatch(dispatch_event(at + 1, at + 1, GRAPH, at + 1, 0))
    assert recorder.drain()["dispatch"]["t_start_ns"].to_pylist() == [6, 7, 8, 9]
    assert recorder.dropped_events == 6 + 5 - 4


def test_events_of_several_threads_are_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads append while another one settles."""
    monkeypatch.setattr("tpu_perf.recorder.recorder.SETTLE_AT", 50)
    recorder = Recorder()
    each = 20_000

    def work(number: int) -> None:
        for at in range(each):
            recorder.sync((at, at, "item()", number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        recorder.settle_large()
    steps = recorder.drain()["sync"]["step"].to_pylist()
    assert [steps.count(number) for number in range(3)] == [each] * 3
    assert recorder.dropped_events == 0
