"""How much of the machine others took, on clocks that the test moves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tpu_perf.recorder import machine_load
from tpu_perf.recorder.machine_load import OtherLoad


def test_what_others_took_is_all_that_was_busy_less_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = SimpleNamespace(wall=0.0, busy=100.0, own=7.0)
    clock = SimpleNamespace(perf_counter=lambda: now.wall, process_time=lambda: now.own)
    monkeypatch.setattr(machine_load, "time", clock)
    monkeypatch.setattr(machine_load, "_busy_s", lambda: now.busy)
    monkeypatch.setattr("psutil.cpu_count", lambda: 4)
    load = OtherLoad()
    assert load.share is None
    with load.watching():
        now.wall, now.busy, now.own = 1.0, 103.0, 8.0  # 3 s busy on 4 cores, 1 s of it ours
    assert load.share == pytest.approx(2 / 4)
    now.busy += 50  # nobody watches
    with load.watching():
        now.wall, now.busy, now.own = 2.0, now.busy + 1.0, 9.0  # all ours
    assert load.share == pytest.approx(2 / 8)


def test_the_systems_clock_never_gives_less_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(wall=0.0, own=0.0)
    clock = SimpleNamespace(perf_counter=lambda: now.wall, process_time=lambda: now.own)
    monkeypatch.setattr(machine_load, "time", clock)
    monkeypatch.setattr(machine_load, "_busy_s", lambda: 5.0)  # its 10 ms have not ticked yet
    load = OtherLoad()
    with load.watching():
        now.wall, now.own = 0.2, 0.2
    assert load.share == 0
