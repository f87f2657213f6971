"""Finds the architectures of the installed transformers, each with the model class it runs as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.conformance.models.libraries import MODELS as LIBRARY_MODELS

#: Which head stands for an architecture, the first that it has; each with the family under which
#: the table lists it. Heads with a loss that needs no odd labels come first.
_HEADS: tuple[tuple[str, str], ...] = (
    ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "multimodal"),
    ("MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", "multimodal"),
    ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "audio"),
    ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "encoder-decoder"),
    ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "text encoder"),
    ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "text decoder"),
    ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", "text encoder"),
    ("MODEL_FOR_CTC_MAPPING_NAMES", "audio"),
    ("MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES", "audio"),
    ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_KEYPOINT_DETECTION_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_TEXT_RECOGNITION_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_IMAGE_TO_IMAGE_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES", "multimodal"),
    ("MODEL_FOR_VISUAL_QUESTION_ANSWERING_MAPPING_NAMES", "multimodal"),
    ("MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES", "text encoder"),
    ("MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES", "time series"),
    ("MODEL_FOR_PRETRAINING_MAPPING_NAMES", "other"),
    ("MODEL_FOR_MASK_GENERATION_MAPPING_NAMES", "vision"),
    ("MODEL_MAPPING_NAMES", "other"),
    ("MODEL_FOR_BACKBONE_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_POSE_ESTIMATION_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_IMAGE_SEGMENTATION_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_IMAGE_MATTING_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_TABLE_RECOGNITION_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_RNNT_MAPPING_NAMES", "audio"),
    ("MODEL_FOR_TDT_MAPPING_NAMES", "audio"),
    ("MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES", "audio"),
    ("MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES", "audio"),
    ("MODEL_FOR_RETRIEVAL_MAPPING_NAMES", "multimodal"),
    ("MODEL_FOR_KEYPOINT_MATCHING_MAPPING_NAMES", "vision"),
    ("MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES", "text encoder"),
)
FAMILIES = ("text decoder", "mixture of experts", "state space", "text encoder",
            "encoder-decoder", "vision", "audio", "multimodal", "time series", "other", "diffusers",
            "timm")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model type, its model class by name, and the family that the table lists it under."""

    name: str
    model_class: str
    family: str


def _config_names() -> set[str]:
    from transformers.models.auto import configuration_auto

    module: Any = configuration_auto
    return set(module.CONFIG_MAPPING_NAMES)


def all_architectures() -> dict[str, Architecture]:
    """Every model type of transformers that has a model class, by name, then those of diffusers
    and timm."""
    others = {n: Architecture(n, m.kind, m.library) for n, m in LIBRARY_MODELS.items()}
    return {**of_transformers(), **others}


def of_transformers() -> dict[str, Architecture]:
    from transformers.models.auto import modeling_auto

    found: dict[str, Architecture] = {}
    for mapping, family in _HEADS:
        for name, model_class in getattr(modeling_auto, mapping, {}).items():
            if name in _config_names() and name not in found:
                chosen = model_class if isinstance(model_class, str) else model_class[0]
                found[name] = Architecture(name, chosen, family)
    return dict(sorted(found.items()))


def without_model_class() -> list[str]:
    """Model types that have a config but no model class of their own."""
    return sorted(_config_names() - set(of_transformers()))


def model_class_of(architecture: Architecture) -> Any:
    import transformers

    return getattr(transformers, architecture.model_class)


def config_class_of(architecture: Architecture) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[architecture.name]
