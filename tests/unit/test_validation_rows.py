"""The published steps as data: what a row needs, and that models do the work recipes say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validation.published import load, steps_document
from tpu_perf.errors import TpuPerfError

#: Tokens a second and device, and TFLOP/s a device with non-causal attention, as published.
PUBLISHED = {
    "llama3.1-8b v6e-8": (7138.9, 413.43),
    "llama3.1-8b v6e-64": (7247.1, 419.70),
    "llama3.1-8b v6e-256": (7207.3, 417.40),
    "llama3.1-70b v6e-32": (921.0, 443.39),
    "llama3.1-70b v6e-256": (960.2, 462.30),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_give_the_published_rates(name: str) -> None:
    found = load()
    row = next(one for one in found.rows if one.name == name)
    step = found.step(row)
    tokens_per_s, tflops = PUBLISHED[name]
    assert step.tokens / row.step_s == pytest.approx(tokens_per_s, rel=1e-3)
    attention = 12 * step.layers * step.sequence * step.heads * step.head_width
    model_flops = step.tokens * (6 * step.matmul_parameters() + attention)
    assert model_flops / row.step_s / 1e12 == pytest.approx(tflops, rel=1e-3)


def test_compiled_flops_are_those_of_the_earlier_experiment() -> None:
    found = load()
    flops = {row.name: found.step(row).dot_flops() / 1e12 for row in found.rows}
    assert flops["llama3.1-8b v6e-8"] == pytest.approx(1343.0, rel=1e-4)
    assert flops["llama3.1-70b v6e-32"] == pytest.approx(8308.5, rel=1e-4)


ROW = """
models: {m: {layers: 2, width: 8, heads: 1, kv_heads: 1, head_width: 8, feed_forward: 8, vocabulary: 8}}
flags: {vmem: "--a=1"}
rows:
  - {name: mine, model: m, target: v6e-1, sequence: 8, batch: 1, step_s: 1.0, flags: [vmem]}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("target: v6e-1", "target: v6e-3", "v6e-1, v6e-4"),
        ("model: m", "model: n", "mine: no model 'n'; there are m"),
        ("flags: [vmem]", "flags: [speed]", "mine: no flags 'speed'"),
        ("batch: 1", "batch: 0", "rows / mine / batch"),
        ("batch: 1", "bach: 1", "rows / mine"),
        ("step_s: 1.0", "step_s: 1.0, recipe: r", "no recipe is called 'r'"),
        ("step_s: 1.0", "step_s: 1.0, offload: [w]", "layer_input"),
        ("rows:", "rows: [", "published.yaml"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, before: str, after: str, told: str) -> None:
    file = tmp_path / "published.yaml"
    file.write_text(ROW, encoding="utf-8")
    assert load(file).rows[0].name == "mine"
    file.write_text(ROW.replace(before, after), encoding="utf-8")
    with pytest.raises(TpuPerfError, match=told):
        load(file)


def test_nothing_predicted_is_null_and_not_zero() -> None:
    document = steps_document([])
    assert document["uncalibrated"] == {
        "rows": 0, "median_abs_error": None, "worst_abs_error": None,
    }  # fmt: skip
