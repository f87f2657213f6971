"""Workload kind `masked_lm`: BERT's masked-token training on real English text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from tpu_perf.record.plan import WorkloadPlan
from tpu_perf.workloads.interface import WORKLOADS, Batch, BuiltWorkload
from tpu_perf.workloads.text import TextBlocks, generator, mask_tokens
from tpu_perf.workloads.transformer import TransformerParameters, build_model

if TYPE_CHECKING:
    import torch

#: Keeps the masks of (seed, step) apart from the data order of (seed, epoch).
_MASK_STREAM = 2**40


class MaskedLmParameters(TransformerParameters):
    """An encoder that learns to predict masked bytes."""

    architecture: Literal["bert"]
    """Which model of `transformers`."""


class MaskedLm:
    """The registry's entry."""

    parameters = MaskedLmParameters

    def validate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return MaskedLmParameters.model_validate(dict(params)).model_dump()

    def build(self, plan: WorkloadPlan, seed: int) -> BuiltWorkload:
        params = plan.params
        text = TextBlocks(params["sequence_length"], params["batch_size"], seed)

        def batch(index: int) -> Batch:
            random = generator(seed, _MASK_STREAM + index)
            inputs, labels = mask_tokens(text.block_batch(index), random)
            return {"input_ids": inputs, "labels": labels}

        module = build_model(params["architecture"], params["model"], params["dropout"], seed)
        batch(0)  # too little text is told now, not at the first step
        return BuiltWorkload(
            module=module,
            batch=batch,
            loss=masked_loss,
            tokens_per_step=params["batch_size"] * params["sequence_length"],
            samples_per_step=params["batch_size"],
        )


def masked_loss(module: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """The model's own loss over the masked positions."""
    loss: torch.Tensor = module(input_ids=batch["input_ids"], labels=batch["labels"]).loss
    return loss


WORKLOADS.add("masked_lm", MaskedLm())
