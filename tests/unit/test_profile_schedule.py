"""Which steps are recorded: against torch.profiler's own schedule, and what steps show."""

from __future__ import annotations

import pytest
from torch.profiler import ProfilerAction
from torch.profiler import schedule as torch_schedule

from tpu_perf.errors import ConfigError
from tpu_perf.profiling.schedule import PROBE_STEPS, Adaptive, Phase, Phases, Schedule

_RECORDED = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def phases(chosen: Phases, compiles: list[int]) -> list[Phase]:
    return [chosen.next(compiles[:step]) for step in range(len(compiles))]


@pytest.mark.parametrize(
    ("skip_first", "wait", "warmup", "active", "repeat"),
    [(0, 1, 1, 3, 2), (2, 0, 1, 1, 0), (0, 2, 0, 2, 1), (3, 1, 2, 2, 3)],
)
def test_a_schedule_records_the_steps_that_torch_profiler_would(
    skip_first: int, wait: int, warmup: int, active: int, repeat: int
) -> None:
    ours = Schedule(skip_first=skip_first, wait=wait, warmup=warmup, active=active, repeat=repeat)
    torchs = torch_schedule(
        skip_first=skip_first, wait=wait, warmup=warmup, active=active, repeat=repeat
    )
    found = phases(ours, [0] * 40)
    recorded = [step for step, phase in enumerate(found) if phase.name in ("timed", "first")]
    expected = [step for step in range(40) if torchs(step) in _RECORDED]
    warm = [step for step in range(40) if torchs(step) is ProfilerAction.WARMUP]
    assert [step for step in recorded if step not in warm] == expected
    assert all(found[step].name in ("warmup", "first") for step in warm)
    if repeat:
        last = expected[-1]
        assert [p.name for p in found[last + 1 : last + 1 + PROBE_STEPS]] == ["probe"] * PROBE_STEPS
        assert {p.name for p in found[last + 1 + PROBE_STEPS :]} == {"wait"}


def test_the_first_step_is_never_a_timed_one() -> None:
    assert Schedule(active=2).next([]).name == "first"
    assert Adaptive().next([]).name == "first"


def test_timed_steps_begin_when_nothing_is_compiled_any_more() -> None:
    compiles = [9, 4, 1, 0] + [0] * 20
    names = [phase.name for phase in phases(Adaptive(), compiles)]
    assert names[:9] == ["first", *["warmup"] * 3, *["timed"] * 3, *["probe"] * 2]
    assert set(names[9:]) == {"timed", "bare"}


def test_a_job_that_always_compiles_is_timed_in_the_end() -> None:
    names = [phase.name for phase in phases(Adaptive(), [1] * 40)]
    assert "timed" in names
    assert names.index("timed") == Adaptive.MOST_WARMUP + 1


def test_unrecorded_steps_are_paired_with_timed_ones_and_come_first_in_every_other_round() -> None:
    found = [phase for phase in phases(Adaptive(), [0] * 200) if phase.round >= 0]
    rounds: dict[int, list[str]] = {}
    for phase in found:
        rounds.setdefault(phase.round, []).append(phase.name)
    paired = [names for names in rounds.values() if "bare" in names and len(names) == 4]
    assert len(paired) >= 10
    assert {names.index("bare") for names in paired} == {0, 3}
    assert rounds[max(rounds)] == ["timed"] * len(rounds[max(rounds)])


@pytest.mark.parametrize("wrong", [{"active": 0}, {"active": 1, "wait": -1}])
def test_numbers_that_make_no_schedule_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="no schedule"):
        Schedule(**wrong)
