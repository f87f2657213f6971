"""The pytest plugin in pytest runs of its own: recording, judging, baselines, and what it costs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tpu_perf.record.store import StoredRun, load_run

#: A clock that only the test moves, and a machine that nobody else uses.
CONFTEST = """
    import itertools, os, types
    import pytest

    @pytest.fixture
    def work(monkeypatch):
        from tpu_perf.pytest_plugin import recording
        now = itertools.count(1_000_000_000).__next__
        state = types.SimpleNamespace(now=0)
        clock = types.SimpleNamespace(perf_counter_ns=lambda: state.now)
        monkeypatch.setattr(recording, "time", clock)
        monkeypatch.setattr(recording.OtherLoad, "share", None)
        calls = itertools.count()
        def work(ms=None):
            ms = float(os.environ.get("STEP_MS", "10")) if ms is None else ms
            state.now += round(ms * 1e6) + (next(calls) * 7919) % 100_000
            return ms
        return work
"""
MARKED = """
    import pytest

    @pytest.mark.tpu_perf(max_step_time_ratio=1.05)
    def test_train(tpu_perf_recorder, work):
        tpu_perf_recorder.measure(work, steps=40)
"""


class Project:
    """A directory with tests, and pytest runs in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("conftest.py", CONFTEST)
        self.write("pytest.ini", "[pytest]\naddopts = --strict-markers -p no:cacheprovider\n")

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(dedent(text), encoding="utf-8")

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tpu_perf.pytest_plugin", "-ra", *arguments],
            cwd=self.path, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "",
                 "TPU_PERF_AUTOLOAD": "0", **variables},
        )  # fmt: skip

    def recorded(self) -> list[StoredRun]:
        found = sorted((self.path / ".tpu_perf").glob("*/run.json"))
        return [load_run(path.parent) for path in found]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def outcome(done: subprocess.CompletedProcess[str]) -> str:
    """`1 passed, 1 warning` of the last line."""
    return re.sub(r" in .*", "", done.stdout.strip().splitlines()[-1].strip("= "))


def test_a_test_that_became_slower_than_its_baseline_fails(project: Project) -> None:
    project.write("test_it.py", MARKED)
    missing = project.run()
    assert outcome(missing) == "1 failed"
    assert "there is no baseline" in missing.stdout
    assert "--tpu-perf-update-baseline" in missing.stdout
    assert outcome(project.run("--tpu-perf-update-baseline")) == "1 passed"
    (baseline,) = (project.path / "tpu_perf_baselines").iterdir()
    assert len(load_run(baseline).steps()) == 45
    assert outcome(project.run()) == "1 passed"
    assert outcome(project.run(STEP_MS="10.3")) == "1 passed"
    slower = project.run(STEP_MS="11")
    assert outcome(slower) == "1 failed"
    told = r"step time regressed: 10\.05 ms m -> 11\.05 ms m, \+(9\.9|10\.0) % \(95 %: "
    assert re.search(told, slower.stdout), slower.stdout
    assert "at most 1.05x of" in slower.stdout
    assert outcome(project.run("--tpu-perf-update-baseline", STEP_MS="11")) == "1 passed"
    assert outcome(project.run(STEP_MS="11")) == "1 passed"


def test_a_baseline_of_another_machine_is_refused_and_may_be_forced(project: Project) -> None:
    project.write("test_it.py", MARKED)
    project.run("--tpu-perf-update-baseline")
    (file,) = (project.path / "tpu_perf_baselines").glob("*/run.json")
    text = re.sub(r'"cores": \d+', '"cores": 999', file.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8")
    refused = project.run()
    assert outcome(refused) == "1 failed"
    assert "cores: 999 against" in refused.stdout
    project.write("test_it.py", MARKED.replace("1.05", "1.05, force=True"))
    assert outcome(project.run()) == "1 passed"


def test_what_cannot_be_judged_fails_and_says_what_to_do(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import pytest

        @pytest.mark.tpu_perf(baseline="few")
        def test_few_steps(tpu_perf_recorder, work):
            tpu_perf_recorder.measure(work, steps=3)

        @pytest.mark.tpu_perf(baseline="few")
        def test_no_step(tpu_perf_recorder):
            pass

        @pytest.mark.tpu_perf(max_step_time_ratio=1.1)
        def test_no_fixture():
            pass

        @pytest.mark.tpu_perf(max_step_time=1.1)
        def test_wrong_argument(tpu_perf_recorder):
            pass

        @pytest.mark.tpu_perf(baseline="few")
        def test_that_fails_by_itself(tpu_perf_recorder):
            assert 1 + 1 == 3
        """,
    )
    project.run("--tpu-perf-update-baseline", "-k", "few_steps")
    done = project.run()
    assert outcome(done) == "5 failed"
    for sentence in (
        "too few samples", "recorded no step", "needs the fixture tpu_perf_recorder",
        "should read tpu_perf(max_step_time_ratio=1.1", "assert (1 + 1) == 3",
    ):  # fmt: skip
        assert sentence in done.stdout, sentence


def test_phases_losses_and_failures_are_recorded(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import pytest
        from tpu_perf.errors import ConfigError

        def test_steps(tpu_perf_recorder, work):
            tpu_perf_recorder.warmup = 2
            for ms in (100, 50, 10, 10, 10):
                with tpu_perf_recorder.step(loss=lambda: ms / 10):
                    work(ms)
            assert tpu_perf_recorder.timed_steps == 3

        def test_that_breaks(tpu_perf_recorder, work):
            with tpu_perf_recorder.step():
                work(10)
            with tpu_perf_recorder.step():
                raise ValueError("half-way")

        def test_nested(tpu_perf_recorder):
            with tpu_perf_recorder.step(), pytest.raises(ConfigError):
                with tpu_perf_recorder.step():
                    pass
        """,
    )
    assert outcome(project.run()) == "1 failed, 2 passed"
    runs = {run.run.plan.rung.partition("::")[2]: run for run in project.recorded()}
    steps = runs["test_steps"].steps()
    assert list(steps["phase"].astype(str)) == ["first", "warmup", "timed", "timed", "timed"]
    assert list(steps["loss"]) == [10, 5, 1, 1, 1]
    took = (steps["t_end_ns"] - steps["t_start_ns"]) // 1_000_000
    assert list(took) == [100, 50, 10, 10, 10]
    assert runs["test_that_breaks"].run.status == "failed"
    assert "half-way" in (runs["test_that_breaks"].run.reason or "")


def test_tests_of_one_name_have_runs_of_their_own(project: Project) -> None:
    (project.path / "a").mkdir()
    project.write("a/test_it.py", MARKED)
    project.write(
        "test_it.py",
        """
        import pytest

        @pytest.mark.parametrize("size", [1, "x/y", "../../up"])
        def test_train(size, tpu_perf_recorder, work):
            tpu_perf_recorder.measure(work, steps=2)
        """,
    )
    done = project.run("--import-mode=importlib", "--tpu-perf-update-baseline")
    assert outcome(done) == "4 passed"
    assert len(project.recorded()) == 4
    assert len(list((project.path / "tpu_perf_baselines").iterdir())) == 1


def test_an_unused_plugin_loads_nothing_but_itself(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import sys

        def test_nothing():
            heavy = {"torch", "jax", "numpy", "pandas", "pyarrow", "scipy", "typer", "psutil"}
            assert not heavy & set(sys.modules)
            ours = {name for name in sys.modules if name.startswith("tpu_perf")}
            assert ours == {"tpu_perf", "tpu_perf.record", "tpu_perf.pytest_plugin"}
        """,
    )
    (project.path / "conftest.py").unlink()
    done = project.run()
    assert outcome(done) == "1 passed", done.stdout


def test_steps_on_the_device_are_recorded_with_their_programs_until_they_are_done(
    project: Project,
) -> None:
    project.write(
        "test_it.py",
        """
        import torch

        def test_train(tpu_perf_recorder):
            import tpu_perf.runtime.device
            x = torch.ones(8, 8).to("tpu")
            for _ in range(8):
                with tpu_perf_recorder.step():
                    y = (x @ x).relu()
            assert y.cpu().sum() == 512
        """,
    )
    done = project.run("--tpu-perf-dir", "out")
    assert outcome(done) == "1 passed", done.stdout
    (directory,) = (project.path / "out").iterdir()
    run = load_run(directory)
    assert run.run.plan.engine == "xla"
    assert run.run.environment is not None
    assert run.run.environment.device_kind == "cpu"
    dispatched = run.events("dispatch")
    last = dispatched[dispatched["step"] == 7]["op"].astype(str)
    assert [op.split(".")[0] for op in last] == ["aten::mm", "aten::relu"]
    steps = run.steps()
    assert steps["compiles"].iloc[0] == 2
    assert not steps["compiles"].iloc[1:].any()
    assert (steps["t_end_ns"] >= steps["t_dispatched_ns"]).all()
