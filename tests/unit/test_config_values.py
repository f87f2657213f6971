"""What a right ladder file means: overrides, merging, defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_config_mistakes import GOOD
from tpu_perf.config.models import default_cache_dir
from tpu_perf.errors import ConfigError
from tpu_perf.ladder.plan import plan_ladder, read_ladder
from tpu_perf.record.plan import Plan


def plans(tmp_path: Path, text: str, *overrides: str) -> dict[str, Plan]:
    file = tmp_path / "ladder.yaml"
    file.write_text(text, encoding="utf-8")
    return {plan.rung: plan for plan in plan_ladder(read_ladder(file, overrides))}


def test_overrides_take_yaml_values_and_names_of_rungs(tmp_path: Path) -> None:
    found = plans(
        tmp_path,
        GOOD,
        "sampling.rounds=3",
        "rungs.strict.precision=bf16_autocast",
        "rungs.0.workload.batch_size=8",
        "workload.model.hidden_size=64",
        "cache_dir=null",
        "optimizer={name: sgd, lr: 1e-3}",
    )
    strict, eager = found["strict"], found["cpu_eager"]
    assert strict.sampling.rounds == eager.sampling.rounds == 3
    assert (strict.precision, eager.precision) == ("bf16_autocast", "float32")
    assert (strict.workload.params["batch_size"], eager.workload.params["batch_size"]) == (2, 8)
    assert eager.workload.params["model"]["hidden_size"] == 64
    assert strict.cache_dir is None
    assert (strict.optimizer.name, strict.optimizer.params["lr"]) == ("sgd", 1e-3)


def test_a_rung_changes_only_what_it_names(tmp_path: Path) -> None:
    text = GOOD.replace(
        "  - strict",
        "  - name: wide\n    rung: strict\n    compiler_options: {level: 2}\n"
        "    optimizer: {implementation: fused}\n"
        "    workload: {batch_size: 4, model: {hidden_size: 64}}",
    )
    found = plans(tmp_path, text + "compiler_options: {level: 1, other: 3}\n")
    wide, eager = found["wide"], found["cpu_eager"]
    assert (wide.engine, wide.mode) == ("xla", "strict")
    assert (eager.engine, eager.mode) == ("cpu", "eager")
    assert wide.workload.params["model"] == {
        **eager.workload.params["model"],
        "hidden_size": 64,
    }
    assert wide.optimizer.params == eager.optimizer.params
    assert (wide.optimizer.implementation, eager.optimizer.implementation) == ("fused", "foreach")
    assert wide.compiler_options == {"level": 2, "other": 3}
    assert eager.compiler_options == {"level": 1, "other": 3}


def test_another_optimizer_starts_from_its_own_defaults(tmp_path: Path) -> None:
    text = GOOD.replace(
        "- strict", "- {name: sgd, rung: strict, optimizer: {name: sgd, momentum: 0.9}}"
    )
    assert plans(tmp_path, text)["sgd"].optimizer.params == {
        "lr": 0.01,
        "momentum": 0.9,
        "dampening": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
    }


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = GOOD.replace(
        "  - strict",
        "  - {name: a, rung: strict, workload: &small {batch_size: 1}}\n"
        "  - {name: b, rung: strict, workload: {<<: *small, sequence_length: 8}}",
    )
    params = plans(tmp_path, text)["b"].workload.params
    assert (params["batch_size"], params["sequence_length"]) == (1, 8)


def test_the_baseline_is_strict_or_the_first(tmp_path: Path) -> None:
    file = tmp_path / "ladder.yaml"
    file.write_text(GOOD)
    assert read_ladder(file).baseline == "strict"
    assert read_ladder(file, ["rungs=[cpu_eager, whole_step]"]).baseline == "cpu_eager"
    assert read_ladder(file, ["baseline=cpu_eager"]).baseline == "cpu_eager"


def test_only_and_skip_choose_rungs(tmp_path: Path) -> None:
    file = tmp_path / "ladder.yaml"
    file.write_text(GOOD)
    config = read_ladder(file)
    assert [plan.rung for plan in plan_ladder(config, only=["strict"])] == ["strict"]
    assert [plan.rung for plan in plan_ladder(config, skip=["strict"])] == ["cpu_eager"]
    with pytest.raises(ConfigError, match="did you mean strict"):
        plan_ladder(config, only=["strickt"])
    with pytest.raises(ConfigError, match="leave no rung"):
        plan_ladder(config, only=["strict"], skip=["strict"])


def test_an_engine_without_the_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the engine cpu has no mode 'strict'"):
        plans(tmp_path, GOOD, "rungs.strict.engine=cpu")


def test_the_cache_lies_under_the_users_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/cache")
    assert default_cache_dir() == "/somewhere/cache/tpu_perf/programs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_dir() == "/home/someone/.cache/tpu_perf/programs"
