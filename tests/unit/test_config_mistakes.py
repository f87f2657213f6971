"""Every mistake in a ladder file is told with its line and what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_perf.errors import ConfigError
from tpu_perf.ladder.plan import read_ladder

GOOD = """\
name: small
workload:
  kind: causal_lm
  architecture: qwen3
  batch_size: 2
  sequence_length: 16
  model:
    hidden_size: 32
    num_hidden_layers: 1
    num_attention_heads: 4
    max_position_embeddings: 64
optimizer: {name: adamw, lr: 0.001}
rungs:
  - cpu_eager
  - strict
"""


def mistakes(tmp_path: Path, text: str, *overrides: str) -> str:
    file = tmp_path / "ladder.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_ladder(file, overrides)
    return caught.value.message.replace(str(tmp_path) + "/", "")


def test_the_good_file_is_good(tmp_path: Path) -> None:
    (tmp_path / "ladder.yaml").write_text(GOOD)
    config = read_ladder(tmp_path / "ladder.yaml")
    assert [rung.name for rung in config.rungs] == ["cpu_eager", "strict"]
    assert config.baseline == "strict"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("batch_size: 2", "batch_sise: 2", "ladder.yaml:5: workload.batch_sise: unknown key; did"),
        ("batch_size: 2", "batch_size: -2", "ladder.yaml:5: workload.batch_size: should be more"),
        ("batch_size: 2", "batch_size: two", ":5: workload.batch_size: should be a whole number"),
        ("batch_size: 2", "batch_size: 2.5", ":5: workload.batch_size: should be a whole number"),
        ("batch_size: 2", "batch_size: true", ":5: workload.batch_size: should be a whole number"),
        (
            "sequence_length: 16",
            "sequence_length: 65",
            ":6: workload.sequence_length: 65 is longer",
        ),
        ("kind: causal_lm", "kind: causal", "did you mean causal_lm?"),
        ("architecture: qwen3", "architecture: qwen", ":4: workload.architecture: 'qwen' is not"),
        ("architecture: qwen3", "architecture: bert", "known: gpt2, llama, qwen3"),
        ("num_attention_heads: 4", "num_attention_heads: 5", "(5) does not divide hidden_size"),
        ("hidden_size: 32", "hidden_sise: 32", ":8: workload.model.hidden_sise: unknown key; did"),
        ("  - strict", "  - strickt", "ladder.yaml:15: rungs[1]: 'strickt' is not one of"),
        ("  - strict", "  - cpu_eager", ":15: rungs[1]: a second rung named cpu_eager"),
        ("  - strict", "  - {rung: strict, engine: gpu}", ":15: rungs[1].engine: 'gpu' is not one"),
        ("  - strict", "  - {rung: strict, precison: float32}", "did you mean precision?"),
        ("  - strict", "  - {rung: strict, workload: {batch_size: 0}}", "rungs[1].workload.batch_"),
        ("  - strict", "  - {rung: strict, optimizer: {momentum: 1}}", "optimizer.momentum: unk"),
        ("  - strict", "  - strict\nbaseline: stric", ":16: baseline: 'stric' is not among"),
        ("  - strict", "  - strict\nseed: -1", ":16: seed: should be at least 0, not -1"),
        ("  - strict", "  - strict\nname: twice", ":16: name: this key is already set on line 1"),
        ("lr: 0.001", "lr: fast", ":12: optimizer.lr: should be a number, not 'fast'"),
        ("lr: 0.001", "betas: [0.9, 1.0]", ":12: optimizer.betas[1]: should be less than 1"),
        (
            "name: adamw, lr: 0.001",
            "name: sgd, nesterov: true",
            ":12: optimizer.nesterov: nesterov",
        ),
        ("name: adamw", "name: adam", "optimizer: 'adam' is not one of the choices; did you mean"),
        ("lr: 0.001", "implementation: fusd", "did you mean fused?"),
        ("name: small", "name: a/b", ":1: name: 'a/b' may only hold"),
    ],
)
def test_mistake_is_told_with_its_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    told = mistakes(tmp_path, GOOD.replace(old, new, 1))
    assert expected in told
    # A misspelt key that is required is told as both.
    others = [line for line in told.splitlines() if "this key is required" not in line]
    assert len(others) == 1 or (len(others) == 2 and "2 mistakes:" in others), told


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = (
        GOOD.replace("qwen3", "qwen9")
        .replace("batch_size: 2", "batch_size: x")
        .replace("lr: 0.001", "lr: -1")
        .replace("- strict", "- strick")
        + "baseline: nobody\nprecision: fp8\nsampling: {rounds: 0}\n"
    )
    lines = mistakes(tmp_path, text, "seed=x", "nowhere.at.all").splitlines()
    assert lines[0] == "9 mistakes:"
    places = [line.split(": ")[0] for line in lines[1:]]
    assert places[:7] == [f"ladder.yaml:{n}" for n in (4, 5, 12, 15, 16, 17, 18)]
    assert all(place.startswith("--set ") for place in places[7:])


def test_a_rung_is_not_blamed_for_what_the_ladder_has_wrong(tmp_path: Path) -> None:
    text = GOOD.replace("batch_size: 2", "batch_size: 0").replace(
        "- strict", "- {rung: strict, workload: {sequence_length: 8}}"
    )
    assert len(mistakes(tmp_path, text).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "ladder.yaml:1: the file is empty"),
        ("# nothing\n", "ladder.yaml:1: the file is empty"),
        ("- a\n- b\n", "ladder.yaml:1: a ladder file is a mapping"),
        ("just words", "ladder.yaml:1: a ladder file is a mapping"),
        ("name: [1\nseed: 2\n", "not valid YAML"),
        ("name: x\n\tseed: 2\n", "ladder.yaml:2: not valid YAML"),
        ("name: &a [*a]\n", "an alias that contains itself"),
        ("1: x\n", "ladder.yaml:1: keys must be plain words"),
    ],
)
def test_what_is_no_ladder_file_is_told(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in mistakes(tmp_path, text)


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "quick.yaml").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"no such file; did you mean quick\.yaml"):
        read_ladder(tmp_path / "quik.yaml")
    with pytest.raises(ConfigError, match="a directory, not a ladder file"):
        read_ladder(tmp_path)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    (tmp_path / "ladder.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_ladder(tmp_path / "ladder.yaml")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "sampling.rouns=3",
            "--set sampling.rouns=3: sampling.rouns: unknown key; did you mean ro",
        ),
        ("sampling.rounds=x", "--set sampling.rounds=x: sampling.rounds: should be a whole number"),
        ("samling.rounds=3", "--set samling.rounds=3: samling: unknown key; did you mean sampling"),
        ("rungs.strickt.precision=float32", "no entry is named 'strickt'; did you mean strict?"),
        ("rungs.7.precision=float32", "7 is outside the list, which has 2 entries"),
        ("seed", "write it as path=value"),
        ("=3", "write it as path=value"),
        ("name.first=3", "name.first"),
        ("seed=[1", "not valid YAML"),
    ],
)
def test_a_wrong_override_is_told_as_such(tmp_path: Path, override: str, expected: str) -> None:
    told = mistakes(tmp_path, GOOD, override)
    assert f"--set {override}" in told
    assert expected in told
