"""The model workloads: what is built, and the FLOPs of a step against the formula by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tpu_perf.errors import WorkloadError
from tpu_perf.ladder.plan import plan_ladder, read_ladder
from tpu_perf.ladder.reference import compute_reference
from tpu_perf.record.plan import Plan, WorkloadPlan
from tpu_perf.workloads.interface import WORKLOADS, BuiltWorkload

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ARCHITECTURES = [
    ("causal_lm", "qwen3"),
    ("causal_lm", "llama"),
    ("causal_lm", "gpt2"),
    ("masked_lm", "bert"),
]


def build(kind: str, architecture: str, seed: int = 0, **changes: Any) -> BuiltWorkload:
    params = {
        "architecture": architecture,
        "model": SIZES,
        "batch_size": 2,
        "sequence_length": 16,
        **changes,
    }
    entry = WORKLOADS.get(kind)
    return entry.build(WorkloadPlan(kind=kind, params=entry.validate(params)), seed)


@pytest.mark.parametrize(("kind", "architecture"), ARCHITECTURES)
def test_parameters_follow_the_seed_and_a_step_trains(kind: str, architecture: str) -> None:
    first, second, other = (build(kind, architecture, seed) for seed in (1, 1, 2))
    same = [torch.equal(a, b) for a, b in zip(*map(_values, (first, second)), strict=True)]
    assert all(same)
    assert not all(torch.equal(a, b) for a, b in zip(*map(_values, (first, other)), strict=True))
    loss = first.loss(first.module, first.batch(0))
    assert loss.dim() == 0
    # An untrained model guesses evenly over the vocabulary.
    assert loss.item() == pytest.approx(torch.log(torch.tensor(260.0)).item(), abs=0.5)
    torch.autograd.backward(loss)
    assert first.tokens_per_step == 32
    assert first.samples_per_step == 2


def _values(workload: BuiltWorkload) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in workload.module.parameters()]


@pytest.mark.parametrize(("kind", "architecture"), [("causal_lm", "gpt2"), ("masked_lm", "bert")])
def test_dropout_reaches_the_model(kind: str, architecture: str) -> None:
    for probability in (0.0, 0.25):
        module = build(kind, architecture, dropout=probability).module
        found = {m.p for m in module.modules() if isinstance(m, torch.nn.Dropout)}
        assert found == {probability}
        assert module.training


def test_causal_labels_are_the_next_tokens() -> None:
    workload = build("causal_lm", "gpt2")
    tokens = workload.batch(0)["tokens"]
    logits = workload.module(input_ids=tokens).logits
    by_hand = torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, 260), tokens[:, 1:].reshape(-1)
    )
    assert workload.loss(workload.module, workload.batch(0)).item() == pytest.approx(
        by_hand.item(), rel=1e-5
    )


def test_settings_pass_through_to_the_configuration_class() -> None:
    module = build("causal_lm", "llama", model={**SIZES, "config": {"rms_norm_eps": 0.5}}).module
    assert module.get_submodule("model.norm").extra_repr().endswith("eps=0.5")
    with pytest.raises(WorkloadError, match="did you mean hidden_act"):
        build("causal_lm", "llama", model={**SIZES, "config": {"hiden_act": "relu"}})


def qwen_plan(tmp_path: Path, *overrides: str) -> Plan:
    file = tmp_path / "ladder.yaml"
    file.write_text(
        """
name: flops
workload:
  kind: causal_lm
  architecture: qwen3
  batch_size: 2
  sequence_length: 32
  model: {hidden_size: 32, num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2,
          head_dim: 16, intermediate_size: 80}
rungs: [cpu_eager]
sampling: {numerics_steps: 2}
"""
    )
    return plan_ladder(read_ladder(file, overrides))[0]


def test_model_flops_are_those_of_the_formula(tmp_path: Path) -> None:
    """6 x matmul parameters x tokens, and 12 x layers x heads x head_dim x sequence a token."""
    batch, sequence, hidden, layers = 2, 32, 32, 3
    heads, groups, head, mlp, vocabulary = 4, 2, 16, 80, 260
    attention = hidden * heads * head + 2 * hidden * groups * head + heads * head * hidden
    matmul = layers * (attention + 3 * hidden * mlp) + hidden * vocabulary
    tokens = batch * sequence
    by_hand = 6 * matmul * tokens + 12 * layers * heads * head * sequence * tokens
    # The rotary embedding's outer product is a matrix product too: frequencies x positions.
    rotary = 2 * (head // 2) * sequence
    counted = compute_reference(qwen_plan(tmp_path)).model_flops_per_step
    assert counted in (by_hand, by_hand + rotary, by_hand + batch * rotary)


def test_the_reference_is_torch_run_by_hand(tmp_path: Path) -> None:
    plan = qwen_plan(tmp_path)
    reference = compute_reference(plan)
    workload = WORKLOADS.get("causal_lm").build(plan.workload, plan.seed)
    optimizer = torch.optim.AdamW(workload.module.parameters(), lr=1e-3, weight_decay=0.01)
    losses, norms = [], []
    for index in range(2):
        tokens = workload.batch(index)["tokens"]
        loss = workload.module(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        squares = sum(
            float((p.grad**2).sum()) for p in workload.module.parameters() if p.grad is not None
        )
        norms.append(squares**0.5)
        optimizer.step()
        losses.append(loss.item())
    assert reference.losses == pytest.approx(losses, rel=1e-5)
    assert reference.grad_norms == pytest.approx(norms, rel=1e-4)
    assert not reference.draws
