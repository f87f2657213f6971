"""Models of `transformers`, built from their configuration classes; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from tpu_perf.config.models import StrictModel, mistake
from tpu_perf.config.problems import did_you_mean
from tpu_perf.errors import WorkloadError
from tpu_perf.workloads.text import VOCABULARY

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Class names in `transformers`, and which of its settings `dropout` sets."""

    config: str
    model: str
    dropout: tuple[str, ...]
    lacks: tuple[str, ...] = ()  # sizes of ModelSizes that this architecture does not have


ARCHITECTURES = {
    "qwen3": Architecture(
        config="Qwen3Config", model="Qwen3ForCausalLM", dropout=("attention_dropout",)
    ),
    "llama": Architecture(
        config="LlamaConfig", model="LlamaForCausalLM", dropout=("attention_dropout",)
    ),
    "gpt2": Architecture(
        config="GPT2Config",
        model="GPT2LMHeadModel",
        dropout=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
        lacks=("num_key_value_heads", "head_dim"),
    ),
    "bert": Architecture(
        config="BertConfig",
        model="BertForMaskedLM",
        dropout=("hidden_dropout_prob", "attention_probs_dropout_prob"),
        lacks=("num_key_value_heads", "head_dim"),
    ),
}
#: GPT-2 has its own word for the width of the MLP.
_RENAMED = {"gpt2": {"intermediate_size": "n_inner"}}


class ModelSizes(StrictModel):
    """Sizes by the names `transformers` gives them.

    Left out: as many key-value heads as heads, head_dim and intermediate_size by the usual
    hidden_size / heads and 4 x hidden_size. The defaults of `transformers` are those of large
    models and do not fit small ones.
    """

    hidden_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int | None = Field(default=None, gt=0)
    head_dim: int | None = Field(default=None, gt=0)
    intermediate_size: int | None = Field(default=None, gt=0, validate_default=True)
    max_position_embeddings: int = Field(default=512, gt=0)
    vocab_size: int = Field(default=VOCABULARY, ge=VOCABULARY)
    tie_word_embeddings: bool | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    """Anything else the configuration class takes."""

    @field_validator("num_key_value_heads")
    @classmethod
    def _groups(cls, value: int | None, info: ValidationInfo) -> int | None:
        heads = info.data.get("num_attention_heads")
        if value and heads and heads % value:
            raise mistake(f"{value} does not divide num_attention_heads ({heads})")
        return value

    @field_validator("head_dim")
    @classmethod
    def _even(cls, value: int | None) -> int | None:
        if value and value % 2:
            raise mistake(f"{value} is odd: rotary position embeddings turn pairs")
        return value

    @field_validator("intermediate_size")
    @classmethod
    def _heads_fit(cls, value: int | None, info: ValidationInfo) -> int | None:
        # Told here because it needs the three fields above.
        hidden, heads = info.data.get("hidden_size"), info.data.get("num_attention_heads")
        if hidden and heads and hidden % heads and info.data.get("head_dim") is None:
            raise mistake(
                f"num_attention_heads ({heads}) does not divide hidden_size ({hidden}); "
                "change one of them or set head_dim"
            )
        return value


class TransformerParameters(StrictModel):
    """What the kinds over `transformers` share."""

    model: ModelSizes
    """Sizes of the model."""
    batch_size: int = Field(gt=0)
    sequence_length: int = Field(gt=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Every dropout probability the architecture has."""

    @field_validator("sequence_length")
    @classmethod
    def _within_positions(cls, value: int, info: ValidationInfo) -> int:
        model = info.data.get("model")
        if model is not None and value > model.max_position_embeddings:
            raise mistake(
                f"{value} is longer than the model's max_position_embeddings "
                f"({model.max_position_embeddings})"
            )
        return value

    @field_validator("architecture", check_fields=False)  # each kind names its architectures
    @classmethod
    def _sizes_exist(cls, value: str, info: ValidationInfo) -> str:
        model = info.data.get("model")
        if isinstance(model, ModelSizes):
            for name in ARCHITECTURES[value].lacks:
                if getattr(model, name) is not None:
                    raise mistake(f"{value} has no {name}; remove it")
        return value


def build_model(
    architecture: str, sizes: Mapping[str, Any], dropout: float, seed: int
) -> torch.nn.Module:
    """The model in training mode, its parameters drawn from `seed`, attention by torch's SDPA."""
    import torch
    import transformers

    entry = ARCHITECTURES[architecture]
    heads = sizes["num_attention_heads"]
    settings = {
        "num_key_value_heads": heads,
        "head_dim": sizes["hidden_size"] // heads,
        "intermediate_size": 4 * sizes["hidden_size"],
        **{k: v for k, v in sizes.items() if v is not None and k != "config"},
    }
    for name in entry.lacks:
        del settings[name]
    for ours, theirs in _RENAMED.get(architecture, {}).items():
        if ours in settings:
            settings[theirs] = settings.pop(ours)
    settings |= dict.fromkeys(entry.dropout, dropout)
    config_class = getattr(transformers, entry.config)
    known = set(config_class().to_dict())
    for name in sizes.get("config", {}):
        if name not in known:
            raise WorkloadError(
                f"workload.model.config.{name}: {entry.config} has no such setting"
                f"{did_you_mean(name, known)}"
            )
    # Token ids of the original vocabularies mean nothing here.
    specials = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = config_class(
        **{"use_cache": False, **specials, **settings, **sizes.get("config", {})},
        attn_implementation="sdpa",
    )
    torch.manual_seed(seed)
    model: torch.nn.Module = getattr(transformers, entry.model)(config)
    return model.train()
