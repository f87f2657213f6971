"""Builds inputs for a tiny model from the parameters of its forward and the sizes in its config."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from tests.conformance.models.tiny import FIRST_SPECIAL, IMAGE_SIDE, PATCH

BATCH = 2
TEXT = 10
DECODER_TEXT = 6
Inputs = dict[str, Any]
_SMALLEST_ID = 5


def find(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these fields that the config, or a config inside it, has with a value."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None and not callable(value):
            return value
    for key in getattr(config, "sub_configs", {}):
        inner = getattr(config, key, None)
        if inner is not None and not isinstance(inner, dict):
            value = find(inner, *names)
            if value is not None:
                return value
    return default


class Builder:
    """Inputs of one model, as candidates from the likeliest shape to the oddest."""

    def __init__(self, model: Any, seed: int = 0) -> None:
        self.model = model
        self.config = model.config
        self.parameters = set(inspect.signature(model.forward).parameters)
        self.main = getattr(model, "main_input_name", "input_ids")
        self.generator = torch.Generator().manual_seed(seed)

    def has(self, name: str) -> bool:
        return name in self.parameters

    def ids(self, *shape: int) -> torch.Tensor:
        vocabulary = find(self.config, "vocab_size", default=FIRST_SPECIAL)
        vocabulary = vocabulary if isinstance(vocabulary, int) else FIRST_SPECIAL
        top = max(_SMALLEST_ID + 1, min(vocabulary, FIRST_SPECIAL))
        return torch.randint(_SMALLEST_ID, top, shape, generator=self.generator)

    def floats(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def candidates(self) -> Iterator[Inputs]:
        """All candidates; the caller takes the first that the model accepts on the CPU."""
        media = list(self._media())
        if self.has("input_ids"):
            for extra in media:
                yield from self._text_with(extra)
            text = self._text()
            yield text
            yield {**text, "attention_mask": None}
        else:
            for extra in media:
                yield self._finished(extra)

    def _media(self) -> Iterator[Inputs]:
        if self.has("pixel_values"):
            yield from self._images("pixel_values")
        elif self.has("hidden_states") and self.has("grid_thw"):
            yield from self._patches("hidden_states", "grid_thw")
        elif self.has("pixel_values_videos"):
            for shape in self._video_shapes():
                yield {"pixel_values_videos": self.floats(*shape)}
        elif self.has("flattened_patches"):
            width = 2 + 3 * PATCH * PATCH
            yield {"flattened_patches": self.floats(BATCH, 8, width).abs()}
        for name in ("input_features", "input_values", "audio_mel", "past_values", "latents"):
            if self.has(name):
                for shape in self._signal_shapes(name):
                    yield self._signal(name, shape)

    def _images(self, name: str) -> Iterator[Inputs]:
        if self.has("image_grid_thw") or self.has("grid_thw"):
            yield from self._patches(name, "image_grid_thw" if self.has("image_grid_thw")
                                     else "grid_thw")  # fmt: skip
        channels = find(self.config, "num_channels", "in_channels", "in_chans", default=3)
        channels = channels if isinstance(channels, int) else 3
        side = find(self.config, "image_size", "input_size", "img_size", default=IMAGE_SIDE)
        height, width = side if isinstance(side, (list, tuple)) else (side, side)
        frames = find(self.config, "num_frames", default=4)
        for shape in (
            (BATCH, channels, height, width),
            (BATCH, 1, channels, height, width),
            (BATCH, frames, channels, height, width),
            (BATCH, channels, 2 * height, 2 * width),
            (BATCH, 2, channels, height, width),
        ):
            made: Inputs = {name: self.floats(*shape)}
            if self.has("spatial_shapes"):
                break
            yield made
            if self.has("image_sizes"):
                yield {**made, "image_sizes": torch.tensor([[height, width]] * BATCH)}
        patch = find(self.config, "patch_size", default=PATCH)
        patch = patch if isinstance(patch, int) else patch[0]
        # Images taken apart into patches beforehand.
        flat = {name: self.floats(BATCH, 16, channels * patch * patch)}
        yield {
            **flat,
            "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
            "pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.long),
        }
        position = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="xy"), -1)
        position = position.reshape(1, 16, 2).expand(BATCH, 16, 2).contiguous()
        for positions in ("pixel_position_ids", "image_position_ids"):
            if self.has(positions):
                yield {**flat, positions: position}

    def _patches(self, name: str, grid: str) -> Iterator[Inputs]:
        """Patches of images laid out in one sequence, with the grid of each image."""
        channels = find(self.config, "in_channels", "num_channels", "in_chans", default=3)
        patch = find(self.config, "patch_size", default=PATCH)
        temporal = find(self.config, "temporal_patch_size", default=1)
        side = 4
        count = BATCH * side * side
        grids = torch.tensor([[1, side, side]] * BATCH)
        for shape in ((count, channels * temporal * patch * patch),
                      (count, channels * patch * patch),
                      (count, channels, patch, patch)):  # fmt: skip
            yield {name: self.floats(*shape), grid: grids}

    def _video_shapes(self) -> Iterator[tuple[int, ...]]:
        channels = find(self.config, "num_channels", "in_chans", default=3)
        side = find(self.config, "image_size", "crop_size", default=IMAGE_SIDE)
        side = side if isinstance(side, int) else side[0]
        frames = find(self.config, "num_frames", "frames_per_clip", default=4)
        yield (BATCH, frames, channels, side, side)
        yield (BATCH, channels, frames, side, side)

    def _signal_shapes(self, name: str) -> Iterator[tuple[int, ...]]:
        bands = find(
            self.config, "num_mel_bins", "n_mels", "feature_size", "input_feat_per_channel",
            "feature_projection_input_dim", "input_dim", "hidden_size", default=80,
        )  # fmt: skip
        longest = find(self.config, "max_source_positions", "max_length", default=32)
        longest = min(longest, 512) if isinstance(longest, int) else 32
        if name == "past_values":
            length = find(self.config, "context_length", default=32)
            channels = find(self.config, "num_input_channels", default=1)
            yield (BATCH, length, channels)
            yield (BATCH, length)
            return
        if name == "input_values":
            yield from ((BATCH, 4000), (BATCH, 1, 4000), (BATCH, longest, bands),
                        (BATCH, 1, 3200), (BATCH, 1920))  # fmt: skip
        yield from ((BATCH, bands, 2 * longest), (BATCH, 2 * longest, bands), (BATCH, bands, 64),
                    (BATCH, 64, bands), (BATCH, bands, longest), (BATCH, 1, 64, bands),
                    (BATCH, 1, 4000))  # fmt: skip

    def _signal(self, name: str, shape: tuple[int, ...]) -> Inputs:
        made: Inputs = {name: self.floats(*shape)}
        length = max(shape[1:])
        for mask in ("input_features_mask", "feature_attention_mask"):
            if self.has(mask):
                made[mask] = torch.ones(BATCH, length, dtype=torch.long)
        if self.has("audio_mel_mask"):
            made["audio_mel_mask"] = torch.zeros(BATCH, length, dtype=torch.bool)
        if name == "past_values":
            features = find(self.config, "num_time_features", default=0) + 1
            if self.has("past_observed_mask"):
                made["past_observed_mask"] = torch.ones(shape)
            if self.has("past_time_features"):
                made["past_time_features"] = self.floats(BATCH, length, features)
        return made

    def _text(self) -> Inputs:
        made: Inputs = {"input_ids": self.ids(BATCH, TEXT)}
        if self.has("attention_mask"):
            mask = torch.ones(BATCH, TEXT, dtype=torch.long)
            mask[1, TEXT - 3 :] = 0
            made["attention_mask"] = mask
        return self._finished(made)

    def _text_with(self, media: Inputs) -> Iterator[Inputs]:
        """Text beside an image or a sound: with one placeholder token for each of its features
        where the config names such a token."""
        sound = not any(n.startswith("pixel") for n in media)
        names = ("audio_token_id", "audio_token_index") if sound else (
            "image_token_id", "image_token_index", "media_placeholder_token_id")  # fmt: skip
        token = find(self.config, *names)
        if isinstance(token, int):
            for count in self._feature_counts(media, sound):
                parts = [self.ids(BATCH, 3), torch.full((BATCH, count), token), self.ids(BATCH, 4)]
                ids = torch.cat(parts, 1)
                made = {**media, "input_ids": ids}
                if self.has("attention_mask"):
                    made["attention_mask"] = torch.ones_like(ids)
                if self.has("mm_token_type_ids"):
                    made["mm_token_type_ids"] = (ids == token).long()
                if self.has("token_type_ids"):
                    made["token_type_ids"] = (ids == token).long()
                yield self._finished(made)
        yield self._finished({**media, "input_ids": self.ids(BATCH, TEXT)})

    def _feature_counts(self, media: Inputs, sound: bool) -> Iterator[int]:
        """Features that one sample's image or sound turns into, as the model itself says."""
        name = "get_audio_features" if sound else "get_image_features"
        # The one that names its parameters; some classes only hand everything on.
        methods = [getattr(m, name, None) for m in (self.model, getattr(self.model, "model", None))]
        method = next((m for m in methods if m is not None and
                       set(media) & set(inspect.signature(m).parameters)), None)  # fmt: skip
        if method is None:
            return
        accepted = inspect.signature(method).parameters
        try:
            with torch.no_grad():
                found = method(**{k: v for k, v in media.items() if k in accepted})
        except Exception:  # this candidate's shape does not suit the model
            return
        features = getattr(found, "pooler_output", None)
        features = found if features is None else features
        rows = _rows(features)
        if rows:
            yield rows // BATCH

    def _finished(self, made: Inputs) -> Inputs:
        """Adds what follows from the inputs there are: decoder inputs, labels, switches."""
        from tests.conformance.models.labels import labels_for

        if self.has("decoder_input_ids") and self.config.is_encoder_decoder:
            made["decoder_input_ids"] = self.ids(BATCH, DECODER_TEXT)
        ids = made.get("input_ids")
        if self.has("bbox") and ids is not None:
            corner = torch.randint(0, 30, (*ids.shape, 2), generator=self.generator)
            made["bbox"] = torch.cat([corner, corner + 5], -1)
        if self.has("use_cache"):
            made["use_cache"] = False
        made.update(labels_for(self, made))
        return {k: v for k, v in made.items() if k in self.parameters}


def _rows(features: Any) -> int:
    if isinstance(features, torch.Tensor):
        return features.numel() // max(1, features.shape[-1])
    if isinstance(features, (list, tuple)):
        return sum(_rows(f) for f in features)
    return 0
