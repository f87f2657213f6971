"""Shrinks the default config of any architecture to a model of some thousand parameters."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

HIDDEN = 64
HEADS = 4
HEAD_DIM = HIDDEN // HEADS
FEED_FORWARD = 96
VOCABULARY = 128
#: Token ids of inputs are below; special ids (image token, eos) are spread above.
FIRST_SPECIAL = 100
IMAGE_SIDE = 64
PATCH = 16
EXPERTS = 4
EXPERTS_PER_TOKEN = 2
LAYERS = 2
POSITIONS = 64


def _at_most(limit: int) -> Callable[[int], int]:
    return lambda value: min(value, limit)


def _exactly(target: int) -> Callable[[int], int]:
    return lambda value: target if value > 0 else value


def _patch(value: int) -> int:
    return PATCH if value >= 8 else value


class Shrinking(Enum):
    """What is made smaller; the next is tried where sizes of a config do not fit together."""

    ALL = "all"
    NUMBERS = "widths that are one number, not those listed by stage"
    COUNTS = "layers, experts, vocabulary, image side; no widths"


#: Pattern of names, change, and whether it is a width.
Rule = tuple[re.Pattern[str], Callable[[int], int], bool]


def _rule(pattern: str, change: Callable[[int], int], is_width: bool = False) -> Rule:
    return re.compile(rf"(?:{pattern})\Z"), change, is_width


#: What a field that holds one integer becomes; the first pattern that matches its name decides.
#: Names are transformers' own conventions.
_RULES: tuple[Rule, ...] = (
    _rule(r"num_channels|num_labels|num_adapter_layers|num_feat_extract_layers|type_vocab_size"
          r"|max_window_layers|.*_layer_idx|num_feature_levels|sampling_rate|sample_rate"
          r"|.*kernel_size|.*_stride|chunk_size_feed_forward|.*temperature|num_memory_blocks"
          r"|input_channels|in_chans|audio_channels|num_image_channels|position_buckets"
          r"|num_nextn_predict_layers|num_codevectors_per_group|num_mel_bins|n_mels"
          r"|num_query_tokens_.*|codebook_dim|.*_rate|.*_factor|.*_ratio",
          lambda value: value),
    _rule(r"first_k_dense_replace|num_dense_layers|moe_layer_start_index", _at_most(1)),
    _rule(r"num_kv_shared_layers|num_hash_layers|n_hash_layers", _exactly(0)),
    _rule(r"(?:.*_)?(?:num_)?(?:\w*_)?layers?|n_layers?|n_layer|(?:\w+_)?depth|layers"
          r"|num_(?:encoder_|decoder_|res_|hidden_)?blocks|num_hidden_groups|(?:\w+_)?n_block",
          _at_most(LAYERS)),
    _rule(r"vocab_size|(?:\w+_)?vocab_size|num_embeddings|codebook_size|vocab_size_per_layer_input"
          r"|n_vocab", _at_most(VOCABULARY)),
    _rule(r"(?:\w+_)?(?:max_position_embeddings|n_positions|max_source_positions"
          r"|max_target_positions|n_ctx|max_2d_position_embeddings|max_seq_len|max_sequence_length)"
          , _at_most(POSITIONS)),
    _rule(r"(?:num_local_experts|num_experts|n_routed_experts|moe_num_experts|num_routed_experts"
          r"|\w*num_experts)", _at_most(EXPERTS)),
    _rule(r"num_experts_per_tok(?:en)?|moe_topk|moe_k|num_selected_experts|top_k_experts"
          r"|moe_top_k|num_activated_experts|router_top_k", _at_most(EXPERTS_PER_TOKEN)),
    _rule(r"n_group|topk_group|num_expert_group|moe_n_group", _at_most(1)),
    _rule(r"(?:\w+_)?(?:num_key_value_heads|num_kv_heads|n_kv_heads?|num_key_value_heads)",
          lambda value: 1 if value == 1 else 2, True),
    _rule(r"(?:\w+_)?(?:num_attention_heads|attention_heads|num_heads|n_heads?|n_head|heads"
          r"|num_attn_heads|mamba_n_heads|mamba_num_heads|linear_num_\w+_heads|num_decoder_heads)",
          _at_most(HEADS), True),
    _rule(r"(?:\w+_)?(?:head_dim|d_kv|v_head_dim|qk_nope_head_dim|qk_rope_head_dim|qk_head_dim"
          r"|attention_head_dim|kv_channels|mamba_d_head|mamba_head_dim|attention_head_size"
          r"|rotary_dim)", _at_most(HEAD_DIM), True),
    _rule(r"kv_lora_rank|q_lora_rank|\w*lora_rank|\w*low_rank_dim|o_groups", _at_most(32), True),
    _rule(r"image_size|img_size|input_image_size|\w*image_size|eval_size", _exactly(IMAGE_SIDE)),
    _rule(r"patch_size|\w*patch_size", _patch),
    _rule(r"num_frames|tubelet_frames", _at_most(4)),
    _rule(r"(?:\w+_)?(?:intermediate_size|ffn_dim|ffn_hidden_size|d_ff|n_inner|mlp_dim"
          r"|feed_forward_dim|feedforward_dim|ff_dim|d_inner|hidden_dim_feedforward|ffn_size"
          r"|feedforward_size|feed_forward_size|ff_size|intermediate_dim|intermediate_channels)",
          _at_most(FEED_FORWARD), True),
    _rule(r"window_size", _at_most(4)),
    _rule(r"mamba_chunk_size|chunk_size|mamba_chunk_len", _at_most(8)),
    _rule(r"mamba_d_state|state_size|ssm_state_size|d_state|mamba_state_dim", _at_most(16), True),
    _rule(r"(?:\w*sliding_window(?:_size)?|attention_window|attention_chunk_size|local_attention"
          r"|index_topk)", _at_most(8)),
    _rule(r"num_queries|num_query_tokens|num_latents|\w*num_object_queries|num_image_tokens",
          _at_most(8)),
    _rule(r"mm_tokens_per_image|image_seq_len(?:gth)?", _at_most(4)),
    _rule(r"(?:\w+_)?(?:hidden_size|hidden_dim|embed_dim|embedding_size|embedding_dim|emb_dim"
          r"|d_model|n_embd|dim|projection_dim|proj_dim|projection_size|out_hidden_size"
          r"|output_dim|embed_size|width|channels|latent_dim|hidden_channels|output_hidden_size"
          r"|projector_dim|output_size|pooler_output_size|query_size|feature_size|fpn_hidden_size"
          r"|lru_width|input_dim|d_latents|qk_channels|v_channels|emb_size|\w+_dim|\w+_hidden)",
          _at_most(HIDDEN), True),
)  # fmt: skip

_WIDTH_LISTS = re.compile(
    r"(?:\w+_)?(?:hidden_sizes|embed_dims?|channels|dims|conv_dim|tdnn_dim|neck_hidden_sizes"
    r"|out_channels|in_channels|hidden_channels|encoder_in_channels|decoder_in_channels)\Z"
)
_DEPTH_LISTS = re.compile(
    r"(?:\w+_)?(?:depths?|layer_depths?|num_layers|block_repeats|stage_num_blocks)\Z"
)
_DROPPED = re.compile(r".*(?:drop|mask_time_prob|mask_feature_prob|jitter).*|attn_pdrop")
_SPECIAL = re.compile(r"(?:\w*_token_(?:id|index)|\w*_token_ids?|\w*_id)\Z")
_PER_LAYER = re.compile(
    r"(?:\w*layer_types|layers_block_type|\w*block_types?|mlp_layer_types|indexer_types"
    r"|layers_types|attention_types|no_rope_layers|hybrid_override_pattern)\Z"
)


def config_kwargs(
    config: Any, shrinking: Shrinking = Shrinking.ALL, tokens: dict[int, int] | None = None
) -> dict[str, Any]:
    """Keyword arguments for the class of `config` (a default instance) that make it tiny."""
    tokens = {} if tokens is None else tokens
    kept = _layers_kept(config)
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        name = field.name
        if name.startswith("_") or name in _UNTOUCHED:
            continue
        value = _value(config, field)
        if value is None or name in _ALWAYS:
            new = _ALWAYS.get(name, _FILLED.get(name))
        else:
            new = _shrunk(name, value, shrinking, kept, tokens)
        if new is not None and not (type(new) is type(value) and new == value):
            changed[name] = new
    _consistent(config, changed)
    return changed


def _value(config: Any, field: dataclasses.Field[Any]) -> Any:
    """The field's value; its default where layers have values of their own."""
    try:
        return getattr(config, field.name, None)
    except RuntimeError:
        return None if field.default is dataclasses.MISSING else field.default


#: Fields of one form that no rule of numbers covers.
_ALWAYS: dict[str, Any] = {"image_grid_pinpoints": [[IMAGE_SIDE, IMAGE_SIDE]]}
#: Fields that many configs leave open and their models need.
_FILLED: dict[str, Any] = {
    "vocab_size": VOCABULARY, "n_routed_experts": EXPERTS, "n_shared_experts": 1, "n_group": 1,
    "topk_group": 1, "num_experts_per_tok": EXPERTS_PER_TOKEN, "prediction_length": 4,
}  # fmt: skip


_UNTOUCHED = {
    "transformers_version", "architectures", "dtype", "id2label", "label2id", "problem_type",
    "is_encoder_decoder", "return_dict", "num_return_sequences",
}  # fmt: skip


def _shrunk(
    name: str, value: Any, shrinking: Shrinking, kept: list[int] | None, tokens: dict[int, int]
) -> Any:
    """The new value of one field, or None to leave it."""
    if dataclasses.is_dataclass(value) and hasattr(value, "model_type"):
        return {**config_kwargs(value, shrinking, tokens), "model_type": value.model_type}
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float) or (isinstance(value, int) and _DROPPED.match(name)):
        return type(value)(0) if _DROPPED.match(name) else None
    if (
        kept is not None
        and isinstance(value, (list, tuple))
        and (_PER_LAYER.match(name) or name == "rope_theta_per_layer")
    ):
        return [value[i] for i in kept] if len(value) > max(kept) else None
    if _SPECIAL.match(name) and isinstance(value, int):
        return _token(value, tokens)
    if isinstance(value, int):
        if kept is not None and name in ("num_hidden_layers", "n_layer", "num_layers"):
            return len(kept)
        for pattern, change, is_width in _RULES:
            if pattern.match(name):
                return None if is_width and shrinking is Shrinking.COUNTS else change(value)
        return None
    if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
        return type(value)(_shrunk_list(name, list(value), shrinking))
    return None


def _shrunk_list(name: str, values: list[int], shrinking: Shrinking) -> list[int]:
    if name in ("image_size", "input_size", "img_size") or name.endswith("image_size"):
        return [IMAGE_SIDE for _ in values]
    if name.endswith("patch_size"):
        return [_patch(v) for v in values]
    if _DEPTH_LISTS.match(name):
        return [min(v, LAYERS) for v in values]
    if _WIDTH_LISTS.match(name) and shrinking is Shrinking.ALL:
        # Stages keep their ratios, and stay divisible by what heads and groups divide them by.
        smallest = min(v for v in values)
        return [max(16, v * 32 // smallest // 16 * 16) if smallest >= 16 else v for v in values]
    if name.endswith(("num_heads", "num_attention_heads", "heads")) and (
        shrinking is not Shrinking.COUNTS
    ):
        return [max(1, v // min(values)) for v in values]
    return values


def _token(value: int, tokens: dict[int, int]) -> int:
    """A special token's id in the small vocabulary: the same for equal ids of the config tree."""
    if value < FIRST_SPECIAL:
        return value
    used = len(tokens)
    return tokens.setdefault(value, FIRST_SPECIAL + used % (VOCABULARY - FIRST_SPECIAL))


def _layers_kept(config: Any) -> list[int] | None:
    """Layers to keep of a config whose layers differ in kind: one of each kind, three at most."""
    count = next((getattr(config, n) for n in ("num_hidden_layers", "n_layer", "num_layers")
                  if isinstance(getattr(config, n, None), int)), None)  # fmt: skip
    if count is None:
        return None
    lists = []
    for name in [f.name for f in dataclasses.fields(config)]:
        value = getattr(config, name, None)
        if _PER_LAYER.match(name) and isinstance(value, (list, tuple)) and len(value) == count:
            lists.append([str(v) for v in value])
    if not lists:
        return None
    kinds: dict[tuple[str, ...], int] = {}
    for i, kind in enumerate(zip(*lists, strict=True)):
        kinds.setdefault(kind, i)
    kept = sorted(kinds.values())[:3]
    return kept if len(kept) > 1 else [0, min(1, count - 1)] if count > 1 else [0]


def _consistent(config: Any, changed: dict[str, Any]) -> None:
    """Relations between fields that no rule of one field can keep."""

    def now(name: str) -> Any:
        return changed.get(name, _plain(config, name))

    heads = _plain(config, "num_attention_heads")
    if (
        "num_key_value_heads" in changed
        and isinstance(heads, int)
        and (_plain(config, "num_key_value_heads") == heads)
    ):
        changed["num_key_value_heads"] = now("num_attention_heads")
    hidden, count = now("hidden_size"), now("num_attention_heads")
    head_dim = now("head_dim") or (
        hidden // count if isinstance(hidden, int) and isinstance(count, int) else HEAD_DIM
    )
    sectioned = "mrope_section" in getattr(config, "ignore_keys_at_rope_validation", ())
    for name in ("rope_parameters", "rope_scaling"):
        rope = _plain(config, name)
        if isinstance(rope, Mapping) and rope:
            small = _rope(rope, head_dim, sectioned)
            if small != rope:
                changed[name] = small


def _plain(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except RuntimeError:  # layers have values of their own
        return None


def _rope(rope: Mapping[str, Any], head_dim: int, sectioned: bool) -> dict[str, Any]:
    """Rotary parameters whose sections fit the small heads."""
    if any(isinstance(v, Mapping) for v in rope.values()):
        return {k: _rope(v, head_dim, sectioned) if isinstance(v, Mapping) else v
                for k, v in rope.items()}  # fmt: skip
    made = dict(rope)
    if made.get("rope_theta") is None:
        made["rope_theta"] = 10000.0
    if sectioned or "mrope_section" in made:
        parts = len(made.get("mrope_section") or (0, 0, 0))
        half = int(head_dim * (made.get("partial_rotary_factor") or 1.0)) // 2
        small = half // 4 if half >= 4 else half // parts
        made["mrope_section"] = [half - (parts - 1) * small] + [small] * (parts - 1)
    return made
