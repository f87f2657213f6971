"""Models of diffusers and timm as further families: one tiny model for each kind they have."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.conformance.models.inputs import Inputs

_STEPS = (3, 500)


@dataclass(frozen=True, slots=True)
class LibraryModel:
    """`build` is given the library's module; the model's sizes are `arguments`."""

    library: str
    kind: str
    build: Callable[[Any, LibraryModel], Any]
    inputs: Callable[[torch.Generator], Inputs]
    arguments: dict[str, Any] = field(default_factory=dict)


def _images(generator: torch.Generator) -> Inputs:
    return {"x": torch.randn(2, 3, 64, 64, generator=generator)}


def _from_timm(timm: Any, model: LibraryModel) -> Any:
    return timm.create_model(model.kind, pretrained=False, num_classes=10, **model.arguments)


def _from_diffusers(diffusers: Any, model: LibraryModel) -> Any:
    return getattr(diffusers, model.kind)(**model.arguments)


def _timm(kind: str, **arguments: Any) -> LibraryModel:
    return LibraryModel("timm", kind, _from_timm, _images, arguments)


def _diffusers(
    kind: str, inputs: Callable[[torch.Generator], Inputs], **arguments: Any
) -> LibraryModel:
    return LibraryModel("diffusers", kind, _from_diffusers, inputs, arguments)


def _latents(name: str, *shape: int, **more: tuple[int, ...]) -> Callable[..., Inputs]:
    """Noise of a shape at two time steps, with further noise by name."""

    def made(generator: torch.Generator) -> Inputs:
        tensors = {n: torch.randn(s, generator=generator) for n, s in more.items()}
        return {name: torch.randn(shape, generator=generator), **tensors,
                "timestep": torch.tensor(_STEPS)}  # fmt: skip

    return made


def _classes(generator: torch.Generator) -> Inputs:
    made = _latents("hidden_states", 2, 4, 8, 8)(generator)
    return {**made, "class_labels": torch.tensor([1, 2])}


def _rotary(generator: torch.Generator) -> Inputs:
    made = _latents("hidden_states", 2, 16, 4, encoder_hidden_states=(2, 5, 32),
                    pooled_projections=(2, 24))(generator)  # fmt: skip
    places = torch.arange(16)
    return {**made, "timestep": torch.tensor([0.3, 0.5]), "txt_ids": torch.zeros(5, 3),
            "img_ids": torch.stack([0 * places, places // 4, places % 4], -1).float()}  # fmt: skip


def _pictures(generator: torch.Generator) -> Inputs:
    return {"sample": torch.randn(2, 3, 16, 16, generator=generator)}


_WINDOWS = {"img_size": 64, "window_size": 4, "embed_dim": 32, "depths": (1, 1),
            "num_heads": (2, 2)}  # fmt: skip
_TOKENS = {"img_size": 64, "embed_dim": 64, "depth": 2, "num_heads": 2}
_JOINT = {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4,
          "joint_attention_dim": 32, "pooled_projection_dim": 24}  # fmt: skip

_MODELS = (
    _diffusers(
        "UNet2DModel", _latents("sample", 2, 3, 16, 16), sample_size=16, layers_per_block=1,
        block_out_channels=(32, 64), attention_head_dim=16,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ),
    _diffusers(
        "UNet2DConditionModel",
        _latents("sample", 2, 4, 8, 8, encoder_hidden_states=(2, 5, 32)),
        sample_size=8, layers_per_block=1, block_out_channels=(32, 64), cross_attention_dim=32,
        attention_head_dim=4, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ),
    _diffusers(
        "DiTTransformer2DModel", _classes, num_attention_heads=2, attention_head_dim=16,
        in_channels=4, num_layers=2, sample_size=8, patch_size=2, norm_num_groups=4,
        num_embeds_ada_norm=10,
    ),
    _diffusers(
        "SD3Transformer2DModel",
        _latents("hidden_states", 2, 4, 8, 8, encoder_hidden_states=(2, 5, 32),
                 pooled_projections=(2, 24)),
        **_JOINT, sample_size=8, patch_size=2, num_layers=2, caption_projection_dim=32,
        out_channels=4, pos_embed_max_size=16,
    ),
    _diffusers(
        "FluxTransformer2DModel", _rotary, **_JOINT, patch_size=1, num_layers=1,
        num_single_layers=1, axes_dims_rope=(4, 4, 8),
    ),
    _diffusers(
        "AutoencoderKL", _pictures, block_out_channels=(32, 64), latent_channels=4,
        norm_num_groups=8, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    ),
    _diffusers(
        "VQModel", _pictures, block_out_channels=(32,), num_vq_embeddings=16, norm_num_groups=8
    ),
    _timm("test_resnet"), _timm("test_efficientnet"), _timm("test_vit", img_size=64),
    _timm("test_convnext"), _timm("test_byobnet"), _timm("test_nfnet"), _timm("test_mambaout"),
    _timm("test_coatnet", img_size=64), _timm("test_maxvit", img_size=64),
    _timm("mobilenetv3_small_050"), _timm("regnetx_002", depths=(1, 1, 1, 1)),
    _timm("densenet121", growth_rate=8, block_config=(1, 1, 1)),
    _timm("swin_tiny_patch4_window7_224", **_WINDOWS),
    _timm("swinv2_tiny_window8_256", **_WINDOWS),
    _timm("deit_tiny_distilled_patch16_224", **_TOKENS), _timm("beit_base_patch16_224", **_TOKENS),
    _timm("cait_xxs24_224", **_TOKENS), _timm("xcit_nano_12_p16_224", img_size=64, depth=2),
    _timm("pvt_v2_b0", depths=(1, 1, 1, 1)), _timm("edgenext_xx_small", depths=(1, 1, 1, 1)),
    _timm("fastvit_t8", layers=(1, 1, 1, 1)), _timm("mobilevit_xxs"), _timm("dla46_c"),
    _timm("davit_tiny", depths=(1, 1), embed_dims=(32, 64), num_heads=(1, 2)),
)  # fmt: skip

MODELS: dict[str, LibraryModel] = {f"{m.library}/{m.kind}": m for m in _MODELS}


def load(library: str) -> Any:
    """The library's module. Raises ImportError with what to install where it is not there."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ImportError(
            f"{library} cannot be imported ({error}): pip install 'tpu_perf[conformance]'"
        ) from error


def let_torchvision_import() -> None:
    """timm needs torchvision, which from PyPI is built for CUDA: beside torch for the CPU its
    kernels do not load, and it cannot be imported for the lack of two ops' names. No model here
    calls them."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return
    try:
        torch.ops.load_library(str(Path(found.origin).with_name("_C.so")))
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)


#: A library that is collected takes its names with it.
_KEPT: list[torch.library.Library] = []
