"""Architectures for which the general rules of configs and inputs do not do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Override:
    """`config` is merged into the tiny config's arguments, dicts within dicts; `needed` goes to
    the default config, which some classes cannot do without; `inputs` replaces the general rules;
    `skip` says why the architecture cannot be built at all."""

    config: dict[str, Any] = field(default_factory=dict)
    needed: dict[str, Any] = field(default_factory=dict)
    inputs: Callable[[Any], dict[str, Any]] | None = None
    model_class: str | None = None
    skip: str = ""

    def applied(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return merged({**self.needed, **arguments}, self.config)


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        both = isinstance(inner, dict) and isinstance(value, dict)
        result[key] = merged(inner, value) if both else value  # type: ignore[arg-type]
    return result


def _time_series(builder: Any) -> dict[str, Any]:
    """A past as long as the lags reach back, with one covariate of time."""
    config = builder.config
    past = config.context_length + max(config.lags_sequence)
    features = config.num_time_features
    return {
        "past_values": builder.floats(2, past),
        "past_time_features": builder.floats(2, past, features),
        "past_observed_mask": torch.ones(2, past),
        "future_values": builder.floats(2, config.prediction_length),
        "future_time_features": builder.floats(2, config.prediction_length, features),
    }


def _qformer(builder: Any) -> dict[str, Any]:
    made = next(builder._images("pixel_values"))
    ids = builder.ids(2, 6)
    return {**made, "input_ids": ids, "qformer_input_ids": builder.ids(2, 5)}


def _lxmert(builder: Any) -> dict[str, Any]:
    config = builder.config
    return {
        "input_ids": builder.ids(2, 10),
        "visual_feats": builder.floats(2, 5, config.visual_feat_dim),
        "visual_pos": builder.floats(2, 5, config.visual_pos_dim),
    }


def _decisions(builder: Any) -> dict[str, Any]:
    config = builder.config
    return {
        "states": builder.floats(2, 5, config.state_dim),
        "actions": builder.floats(2, 5, config.act_dim),
        "rewards": builder.floats(2, 5, 1),
        "returns_to_go": builder.floats(2, 5, 1),
        "timesteps": torch.arange(5).expand(2, 5).contiguous(),
        "attention_mask": torch.ones(2, 5),
    }


def _pair_of_images(builder: Any) -> dict[str, Any]:
    return {"pixel_values": builder.floats(2, 2, 3, 64, 64)}


def _one_sound(builder: Any) -> dict[str, Any]:
    return {"input_values": builder.floats(2, 1, 1920)}


def _queries(builder: Any) -> dict[str, Any]:
    config = builder.config
    return {
        "query_embeds": builder.floats(2, 4, config.hidden_size),
        "encoder_hidden_states": builder.floats(2, 6, config.encoder_hidden_size),
    }


def _dia(builder: Any) -> dict[str, Any]:
    return {"input_ids": builder.ids(2, 10), "decoder_input_ids": builder.ids(2, 6, 9),
            "use_cache": False}  # fmt: skip


def _flattened(builder: Any) -> dict[str, Any]:
    width = builder.config.vision_config.patch_embed_hidden_size
    patches = builder.floats(2, 8, 2 + width)
    patches[:, :, :2] = torch.arange(8)[None, :, None] % 4 + 1
    ids = builder.ids(2, 6)
    return {"flattened_patches": patches, "decoder_input_ids": ids, "labels": ids.clone(),
            "use_cache": False}  # fmt: skip


def _plain_text(builder: Any) -> dict[str, Any]:
    return {"input_ids": builder.ids(2, 10)}


_NO_PREFIX_LABELS = Override(inputs=_plain_text)
_RANDOM = "draws random numbers wherever it runs: no two runs are alike"
_SERIES = Override(inputs=_time_series)
#: Each stage halves the grid, which must stay as wide as a window.
_WIDE_IMAGE = Override(config={"image_size": 128})

OVERRIDES: dict[str, Override] = {
    "autoformer": _SERIES,
    "informer": _SERIES,
    "time_series_transformer": _SERIES,
    "instructblip": Override(inputs=_qformer),
    "instructblipvideo": Override(inputs=_qformer),
    "lxmert": Override(inputs=_lxmert),
    "decision_transformer": Override(inputs=_decisions),
    "superglue": Override(inputs=_pair_of_images),
    "lightglue": Override(inputs=_pair_of_images),
    "efficientloftr": Override(inputs=_pair_of_images),
    "neucodec": Override(inputs=_one_sound),
    "blip_2_qformer": Override(inputs=_queries),
    "dia": Override(inputs=_dia),
    "pix2struct": Override(inputs=_flattened),
    "perceiver": _NO_PREFIX_LABELS,
    "aria": Override(config={"projector_patch_to_query_dict": {16: 4}}),
    "xmod": Override(config={"default_language": "en_XX"}),
    "mamba2": Override(config={"num_heads": 8}),
    "bamba": Override(config={"mamba_n_heads": 8, "mamba_d_head": 16}),
    "granitemoehybrid": Override(config={"mamba_n_heads": 8, "mamba_d_head": 16}),
    "gpt_neo": Override(config={"attention_types": [[["global", "local"], 1]]}),
    "gemma4_assistant": Override(config={"hidden_size_per_layer_input": 0}),
    "glm5_next": Override(config={"text_config": {"index_topk": 16}}),
    "glm5_next_text": Override(config={"index_topk": 16}),
    "swin": _WIDE_IMAGE,
    "donut-swin": _WIDE_IMAGE,
    "maskformer-swin": _WIDE_IMAGE,
    "bit": Override(config={"num_groups": 4}),
    "univnet": Override(skip=_RANDOM),
    "vits": Override(skip=_RANDOM),
    "rag": Override(skip="needs a retrieval index"),
}
