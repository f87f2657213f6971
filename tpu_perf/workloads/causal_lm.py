"""Workload kind `causal_lm`: next-token training of a decoder on real English text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from tpu_perf.record.plan import WorkloadPlan
from tpu_perf.workloads.interface import WORKLOADS, Batch, BuiltWorkload
from tpu_perf.workloads.text import TextBlocks
from tpu_perf.workloads.transformer import TransformerParameters, build_model

if TYPE_CHECKING:
    import torch


class CausalLmParameters(TransformerParameters):
    """A decoder that learns to predict the next byte."""

    architecture: Literal["qwen3", "llama", "gpt2"]
    """Which model of `transformers`."""


class CausalLm:
    """The registry's entry."""

    parameters = CausalLmParameters

    def validate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return CausalLmParameters.model_validate(dict(params)).model_dump()

    def build(self, plan: WorkloadPlan, seed: int) -> BuiltWorkload:
        params = plan.params
        text = TextBlocks(params["sequence_length"], params["batch_size"], seed)

        def batch(index: int) -> Batch:
            return {"tokens": text.block_batch(index)}

        module = build_model(params["architecture"], params["model"], params["dropout"], seed)
        batch(0)  # too little text is told now, not at the first step
        return BuiltWorkload(
            module=module,
            batch=batch,
            loss=causal_loss,
            tokens_per_step=params["batch_size"] * params["sequence_length"],
            samples_per_step=params["batch_size"],
        )


def causal_loss(module: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """The model's own loss: it shifts the labels itself."""
    tokens = batch["tokens"]
    loss: torch.Tensor = module(input_ids=tokens, labels=tokens).loss
    return loss


WORKLOADS.add("causal_lm", CausalLm())
