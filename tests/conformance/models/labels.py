"""Labels for heads that compute a loss themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tests.conformance.models.inputs import Builder


def labels_for(builder: Builder, made: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments with labels, none where the head's labels have a form of their own."""
    if not builder.has("labels"):
        return {}
    name = type(builder.model).__name__
    ids = made.get("input_ids")
    if "decoder_input_ids" in made:
        return {"labels": made["decoder_input_ids"].clone()} if _is_language_head(name) else {}
    if name.endswith(("ForCTC",)):
        return {"labels": builder.ids(2, 3) % 20 + 1}
    if name.endswith(("ForSequenceClassification", "ForImageClassification",
                      "ForVideoClassification", "ForAudioClassification")):  # fmt: skip
        return {"labels": torch.tensor([0, 1])}
    if ids is not None and _is_language_head(name):
        special = builder.config.get_text_config().vocab_size
        labels = ids.clone()
        # Placeholders of images and sounds, and padding, are not predicted.
        mask = made.get("attention_mask")
        labels[labels >= min(special, 100)] = -100
        if mask is not None and mask.shape == labels.shape:
            labels[mask == 0] = -100
        return {"labels": labels}
    return {}


def _is_language_head(name: str) -> bool:
    return name.endswith(("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration"))
