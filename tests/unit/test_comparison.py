"""Comparing and gating stored runs: verdicts, refusals, what moved, exit codes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.stored_ladders import (
    ENVIRONMENT,
    FACTS,
    Timeline,
    partial_ladder,
    plan,
    write_ladder_of,
    write_run,
)
from tpu_perf.analysis.comparability import differences
from tpu_perf.analysis.gate import gate
from tpu_perf.analysis.ladder_comparison import compare
from tpu_perf.analysis.run_comparison import compare_runs
from tpu_perf.cli.main import main
from tpu_perf.errors import ConfigError, ExitCode, NotComparable, StoredRunError
from tpu_perf.export.comparison.markdown import comparison_markdown, gate_markdown
from tpu_perf.record.plan import WorkloadPlan
from tpu_perf.record.run import Facts, Run
from tpu_perf.record.store import StoredRun, load_run

#: Round medians in ms: the same code twice, then 10 % slower.
BASE = (100.0, 101.0, 99.0, 100.5, 99.5, 102.0, 98.5, 100.2)
SAME = (100.1, 99.2, 101.3, 98.9, 100.6, 99.7, 101.8, 100.3)
SLOWER = tuple(1.1 * ms for ms in SAME)


def timeline(rounds_ms: Sequence[float], **fields: Any) -> Timeline:
    made = Timeline(**fields)
    made.warm_up()
    for index, ms in enumerate(rounds_ms):
        for _ in range(2):
            made.step("timed", index, ms)
    return made


def run_of(
    path: Path, rounds_ms: Sequence[float] = BASE, *, facts: Facts = FACTS, run: Run | None = None
) -> StoredRun:
    return load_run(write_run(path, timeline(rounds_ms), facts=facts, run=run))


def ladder_of(path: Path, interleaved: bool = True, **rungs: Sequence[float]) -> Path:
    blocks = (tuple(rungs),) if interleaved else ()
    write_ladder_of(path, list(rungs), blocks=blocks)
    for name, rounds_ms in rungs.items():
        run_of(path / "rungs" / name, rounds_ms)
    return path


def test_ten_percent_is_found_and_sameness_is_not_called_a_difference(tmp_path: Path) -> None:
    base, same, slower = (
        run_of(tmp_path / name, ms)
        for name, ms in (("a", BASE), ("b", SAME), ("c", SLOWER))
    )  # fmt: skip
    worse = compare_runs(base, slower).metric("step_time")
    assert worse.verdict == "worse"
    assert worse.change.value == pytest.approx(1.1, abs=0.02)
    assert worse.change.low is not None
    assert worse.change.low < 1.1 < (worse.change.high or 0)
    assert compare_runs(slower, base).metric("step_time").verdict == "better"
    tokens = compare_runs(base, slower).metric("tokens_per_second")
    assert tokens.verdict == "worse"
    assert tokens.change.value == pytest.approx(1 / 1.1, abs=0.02)
    assert compare_runs(base, same).metric("step_time").verdict == "no difference found"


def test_what_a_sample_cannot_carry_is_called_too_few_samples(tmp_path: Path) -> None:
    short = run_of(tmp_path / "a", BASE[:1])
    other = run_of(tmp_path / "b", SLOWER[:1])
    found = compare_runs(short, other).metric("step_time")
    assert found.verdict == "too few samples"
    assert found.p_value is None
    assert found.change.low is None
    once = compare_runs(short, other).metric("first_step_time")
    assert once.verdict == "too few samples"


def test_rungs_of_one_ladder_are_compared_round_by_round(tmp_path: Path) -> None:
    # A machine that is slow in every other round hides 3 % from two samples, not from pairs.
    drift = [ms * (1.5 if i % 2 else 1.0) for i, ms in enumerate(BASE)]
    home = ladder_of(tmp_path / "paired", a=drift, b=[1.03 * ms for ms in drift])
    rungs = load_run(home / "rungs/a"), load_run(home / "rungs/b")
    paired = compare_runs(*rungs)
    assert paired.paired
    assert paired.metric("step_time").verdict == "worse"
    assert paired.metric("step_time").change.value == pytest.approx(1.03, abs=1e-6)
    home = ladder_of(tmp_path / "apart", interleaved=False, a=drift, b=[1.03 * ms for ms in drift])
    apart = compare_runs(load_run(home / "rungs/a"), load_run(home / "rungs/b"))
    assert not apart.paired
    assert apart.metric("step_time").verdict == "no difference found"


CHANGES = {
    "device kind": {"environment": replace(ENVIRONMENT, device_kind="TPU v6 lite")},
    "torch": {"environment": replace(ENVIRONMENT, versions={"torch": "2.14.0", "jax": "0.10.2"})},
    "cores": {"environment": replace(ENVIRONMENT, cores=64)},
    "precision": {"plan": plan("a", precision="bf16_autocast")},
    "workload layers": {
        "plan": plan("a", workload=WorkloadPlan(kind="transformers", params={"layers": 8}))
    },
    "tokens per step": {"facts": replace(FACTS, tokens_per_step=2_000)},
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_cannot_be_compared_is_refused_unless_forced(what: str, tmp_path: Path) -> None:
    first = Run(plan=plan("a"), environment=ENVIRONMENT, status="ok", facts=FACTS)
    base = run_of(tmp_path / "a", run=first)
    new = run_of(tmp_path / "b", SAME, run=replace(first, **CHANGES[what]))  # type: ignore[arg-type]
    with pytest.raises(NotComparable, match=what):
        compare_runs(base, new)
    forced = compare_runs(base, new, force=True)
    assert what in [difference.what for difference in forced.blocking]


def test_how_a_run_was_made_may_differ_and_is_told(tmp_path: Path) -> None:
    first = Run(plan=plan("a"), environment=ENVIRONMENT, status="ok", facts=FACTS)
    there = replace(ENVIRONMENT, hostname="other", git_commit="abc", variables={"XLA_FLAGS": "x"})
    second = replace(first, plan=plan("a", mode="whole_step"), environment=there)
    found = {difference.what: difference.blocking for difference in differences(first, second)}
    assert found == {"mode": False, "hostname": False, "variable XLA_FLAGS": False}


def test_a_users_function_is_the_same_in_another_checkout() -> None:
    def of(path: str) -> Run:
        work = WorkloadPlan(kind="python", params={"function": f"{path}/job.py:make", "params": {}})
        return Run(plan=plan("a", workload=work), environment=ENVIRONMENT, status="ok")

    assert not differences(of("/home/me/project"), of("/ci/build/7"))


def test_ops_that_moved_come_first_with_their_significance(tmp_path: Path) -> None:
    base = load_run(write_run(tmp_path / "a", timeline(BASE, op_ms=0.5)))
    new = load_run(write_run(tmp_path / "b", timeline(SAME, op_ms=0.75)))
    moved = compare_runs(base, new).moved
    assert [(m.by, m.lane, m.label) for m in moved] == [("op", "host", "mm")]
    assert moved[0].base_s == pytest.approx(4 * 0.5e-3)
    assert moved[0].new_s == pytest.approx(4 * 0.75e-3)
    assert moved[0].base_calls == moved[0].new_calls == 4
    assert moved[0].verdict == "worse"


def test_the_gate_fails_on_a_regression_and_only_then(tmp_path: Path) -> None:
    base = ladder_of(tmp_path / "base", strict=BASE, whole_step=BASE)
    same = ladder_of(tmp_path / "same", strict=SAME, whole_step=SAME)
    slower = ladder_of(tmp_path / "slower", strict=SAME, whole_step=SLOWER)
    passed = gate([base], same, limit=0.05)
    assert passed.exit_code is ExitCode.OK
    assert {check.state for check in passed.checks} == {"within the limit"}
    failed = gate([base], slower, limit=0.05)
    assert failed.exit_code is ExitCode.REGRESSION
    assert [check.rung for check in failed.regressed] == ["whole_step"]
    assert {run.name for run in failed.comparisons[0].rungs if run.moved} == {"whole_step"}
    assert gate([base], slower, limit=0.2).exit_code is ExitCode.OK
    assert {c.state for c in gate([slower], base, limit=0.05, rungs=["whole_step"]).checks} == {
        "improved"
    }


def test_a_base_launch_as_slow_as_the_new_run_clears_it(tmp_path: Path) -> None:
    base = ladder_of(tmp_path / "base", strict=BASE)
    slow_launch = ladder_of(tmp_path / "base2", strict=[1.09 * ms for ms in BASE])
    new = ladder_of(tmp_path / "new", strict=SLOWER)
    assert gate([base], new, limit=0.05).exit_code is ExitCode.REGRESSION
    assert gate([base, slow_launch], new, limit=0.05).exit_code is ExitCode.OK


def test_a_run_that_shared_its_machine_is_not_judged(tmp_path: Path) -> None:
    run_of(tmp_path / "base", BASE)
    run_of(tmp_path / "new", SLOWER, facts=replace(FACTS, other_cpu_share=0.4))
    found = gate([tmp_path / "base"], tmp_path / "new", limit=0.05)
    assert [check.state for check in found.checks] == ["not resolved"]
    assert "other processes took 40%" in found.checks[0].because
    assert found.exit_code is ExitCode.OK


def test_a_job_next_door_in_half_of_the_rounds_is_no_regression(tmp_path: Path) -> None:
    run_of(tmp_path / "base", BASE)
    busy = [ms * (1.4 if i % 8 < 5 else 1.0) for i, ms in enumerate((*SAME, *SAME))]
    run_of(tmp_path / "new", busy)
    assert gate([tmp_path / "base"], tmp_path / "new", limit=0.05).exit_code is ExitCode.OK


def test_counts_are_gated_without_noise(tmp_path: Path) -> None:
    write_run(tmp_path / "base", timeline(BASE, live_bytes=1_000))
    write_run(tmp_path / "new", timeline(SAME, live_bytes=1_200))
    found = gate([tmp_path / "base"], tmp_path / "new", limit=0.1, metrics=["hbm_peak_bytes"])
    assert found.exit_code is ExitCode.REGRESSION
    with pytest.raises(ConfigError, match="unknown metric"):
        gate([tmp_path / "base"], tmp_path / "new", limit=0.1, metrics=["speed"])


def test_a_rung_that_failed_at_new_is_told_and_has_its_own_exit_code(tmp_path: Path) -> None:
    base = ladder_of(tmp_path / "base", strict=BASE, compile=BASE, missing=BASE)
    new = partial_ladder(tmp_path / "new")
    found = compare(base, new)
    assert [run.name for run in found.rungs] == ["strict"]
    assert set(found.lost) == {"compile", "missing"}
    assert "debug" in found.only_new
    judged = gate([base], new, limit=0.5)
    assert judged.exit_code is ExitCode.RUNG_FAILED
    text = gate_markdown(judged) + comparison_markdown(found, 3)
    assert "<b>aten" not in text.replace("\\<b\\>aten", "")


def test_directories_that_cannot_be_set_against_each_other(tmp_path: Path) -> None:
    base = ladder_of(tmp_path / "base", strict=BASE)
    other = ladder_of(tmp_path / "other", debug=BASE)
    with pytest.raises(StoredRunError, match="no rung in common"):
        compare(base, other)
    with pytest.raises(StoredRunError, match="no rung nonsense"):
        compare(base, other, rungs=["nonsense"])
    run_of(tmp_path / "run", SAME)
    with pytest.raises(StoredRunError, match="several rungs"):
        compare(base, tmp_path / "run")
    assert compare(base, tmp_path / "run", rungs=["strict"]).rungs[0].name == "strict -> run"


def _exit_code(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    return int(exit_.value.code or 0)


def test_the_gate_command_writes_the_jobs_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ladder_of(tmp_path / "base", strict=BASE)
    new = ladder_of(tmp_path / "new", strict=SLOWER)
    summary = tmp_path / "summary.md"
    summary.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert _exit_code("gate", base, new, "--max-regression", "5%", "--json") == 1
    assert json.loads(capsys.readouterr().out)["checks"][0]["state"] == "regressed"
    assert _exit_code("gate", base, new, "--max-regression", "0.2") == 0
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("before\n### Regression beyond 5.0 % and beyond noise: strict")
    assert "### No regression beyond 20.0 %" in text
    assert _exit_code("gate", base, new, "--max-regression", "much") == 2
    assert _exit_code("gate", base, tmp_path / "nothing") == 2


def test_the_compare_command_prints_all_three_forms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ladder_of(tmp_path / "base", strict=BASE)
    new = ladder_of(tmp_path / "new", strict=SLOWER)
    assert _exit_code("compare", base, new) == 0
    assert "worse (p" in capsys.readouterr().out
    assert _exit_code("compare", base, new, "--markdown") == 0
    assert "| step time |" in capsys.readouterr().out
    assert _exit_code("compare", base, new, "--json") == 0
    found = json.loads(capsys.readouterr().out)["rungs"][0]["metrics"]["step_time"]
    assert found["verdict"] == "worse"
    assert found["change"]["value"] == pytest.approx(1.1, abs=0.02)
