"""A fixed part of the table of models, one of each kind, and the harness that makes it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from tests.conformance import pool
from tests.conformance.models import expected
from tests.conformance.models.__main__ import MODELS, chosen, library_of, stored_results
from tests.conformance.models.architectures import all_architectures
from tests.conformance.models.cells import ModelCell, ModelResult
from tests.conformance.models.libraries import load
from tests.conformance.models.reference import make_reference
from tests.conformance.models.results import Results
from tests.conformance.models.training_step import Comparison, Step

_EAGER = ("llama", "bert", "t5", "vit", "wav2vec2", "mixtral", "mamba", "qwen2_vl")
_COMPILED = ("bert", "mixtral")


def _modes(name: str) -> tuple[str, ...]:
    return ("strict", "defer_and_fuse", "compile") if name in _COMPILED else (
        "strict", "defer_and_fuse")  # fmt: skip


_CELLS = [ModelCell(name, mode) for name in _EAGER for mode in _modes(name)]


@pytest.fixture(scope="module")
def outcomes() -> dict[ModelCell, ModelResult]:
    """All cells, checked in worker processes at once."""
    found: dict[ModelCell, ModelResult] = {}
    work = [[c for c in _CELLS if c.architecture == name] for name in _EAGER]
    effort = pool.Effort(jobs=os.cpu_count() or 1, limit_s=200)
    pool.run(MODELS, work, effort, lambda result: found.update({result.cell: result}))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("cell", _CELLS, ids=lambda c: f"{c.architecture}-{c.mode}")
def test_a_training_step_agrees_with_the_cpu(
    cell: ModelCell, outcomes: dict[ModelCell, ModelResult]
) -> None:
    result = outcomes[cell]
    assert result.status == "passed", result.message


def _linear_step() -> Step:
    weight = torch.tensor([1.0, -2.0])
    return Step({"logits": weight}, {"w": weight}, {"w": weight}, {})


def test_a_wrong_gradient_does_not_pass() -> None:
    comparison = Comparison(_linear_step(), lambda: None)
    assert comparison.problems(_linear_step()) == []
    wrong = _linear_step()
    wrong.gradients["w"] = torch.tensor([1.0, -2.02])
    (problem,) = comparison.problems(wrong)
    assert problem.startswith("gradient w: differs by 2.00e-02")


def test_rounding_of_the_cpu_itself_is_no_difference() -> None:
    exact = Step({"logits": torch.tensor([1.001, -2.0]).double()}, {}, {}, {})
    reference = Step({"logits": torch.tensor([1.0, -2.0])}, {}, {}, {})
    near = Step({"logits": torch.tensor([1.0012, -2.0])}, {}, {}, {})
    far = Step({"logits": torch.tensor([1.01, -2.0])}, {}, {}, {})
    assert Comparison(reference, lambda: exact).problems(near) == []
    assert Comparison(reference, lambda: exact).problems(far)
    assert Comparison(reference, lambda: None).problems(near)


def test_a_gradient_that_float32_does_not_know_is_no_difference() -> None:
    def gradient(value: float) -> Step:
        return Step({}, {"w": torch.tensor([value, 1.0])}, {}, {})

    exact = Step({}, {"w": torch.tensor([0.1, 1.0]).double()}, {}, {})
    comparison = Comparison(gradient(0.1), lambda: exact, lambda: [gradient(0.11), gradient(0.2)])
    assert comparison.problems(gradient(0.4)) == []
    assert comparison.problems(gradient(0.6))
    outputs = Step({"loss": torch.tensor([0.4])}, {}, {}, {})
    assert Comparison(
        Step({"loss": torch.tensor([0.1])}, {}, {}, {}),
        lambda: Step({"loss": torch.tensor([0.1]).double()}, {}, {}, {}),
        lambda: [Step({"loss": torch.tensor([0.2])}, {}, {}, {})],
    ).problems(outputs)


def test_a_tiny_multimodal_model_is_given_its_image() -> None:
    reference = make_reference(all_architectures()["qwen2_vl"])
    assert "pixel_values" in reference.inputs
    assert reference.size < 1_000_000
    assert reference.family == "multimodal"
    gradients = reference.comparison.reference.gradients
    assert float(gradients["model.visual.patch_embed.proj.weight"].abs().max()) > 0


def test_most_architectures_are_found() -> None:
    found = all_architectures()
    assert len(found) > 300
    assert found["bert"].family == "text encoder"
    assert chosen(list(found), ["qwen2*"], None, 0)[0] == "qwen2"
    assert chosen(list(found), None, 5, 1) == chosen(list(found), None, 5, 1)
    with pytest.raises(SystemExit, match="no architecture"):
        chosen(list(found), ["no_such_model"], None, 0)


def test_unexpected_passes_and_failures_are_problems(tmp_path: Path) -> None:
    file = tmp_path / "expected.toml"
    file.write_text(
        '[[expected]]\narchitecture = "a"\nmodes = ["strict"]\nreason = "no such op"\n'
        '[[expected]]\narchitecture = "b"\nmodes = ["compile"]\nreason = "slow"\n'
    )
    reasons = expected.load(file)
    results = [
        ModelResult(ModelCell("a", "strict"), "failed", "no such op", family="vision"),
        ModelResult(ModelCell("a", "compile"), "failed", "wrong", family="vision"),
        ModelResult(ModelCell("b", "compile"), "passed", family="vision"),
        ModelResult(ModelCell("c", "strict"), "not_buildable", "needs timm"),
    ]
    found = Results(results, reasons)
    assert [(r.cell.architecture, r.cell.mode) for r, _ in found.problems] == [
        ("a", "compile"), ("b", "compile"),
    ]  # fmt: skip
    document = found.as_json()
    assert (document["architectures"], document["run_on_cpu"]) == (3, 2)
    assert document["agree"]["compile"] == {"run": 2, "agree": 1, "share": 0.5}
    assert document["not_buildable"][0]["reason"] == "needs timm"


def test_every_expected_failure_names_an_architecture() -> None:
    known = all_architectures()
    assert all(cell.architecture in known for cell in expected.load())


def test_zeros_stand_for_no_gradient_only_where_told() -> None:
    comparison = Comparison(_linear_step(), lambda: None)
    more = _linear_step()
    more.gradients["unused"] = torch.zeros(2)
    assert comparison.problems(more) == ["gradients of other names: unused"]
    assert comparison.problems(more, zeros_for_none=True) == []
    more.gradients["unused"] = torch.ones(2)
    assert comparison.problems(more, zeros_for_none=True)
    assert comparison.problems(_linear_step()) == []


def test_models_of_other_libraries_are_chosen_by_name() -> None:
    found = all_architectures()
    assert found["diffusers/UNet2DModel"].family == "diffusers"
    assert sum(library_of(name) == "timm" for name in found) >= 20
    assert library_of("bert") == "transformers"


def test_a_run_is_resumed_from_the_results_it_stored(tmp_path: Path) -> None:
    kept = ModelResult(ModelCell("bert", "strict"), "passed", family="text encoder", inputs=("x",))
    file = tmp_path / "results.jsonl"
    assert stored_results(file) == []
    file.write_text(json.dumps(kept.as_json()) + "\n" + json.dumps(kept.as_json())[:30])
    assert stored_results(file) == [kept]


def test_a_library_that_is_absent_says_what_to_install() -> None:
    with pytest.raises(ImportError, match=r"no_such_library cannot be imported.*conformance"):
        load("no_such_library")
