"""Modules of torch.nn whose paths are the device's own: cells, attention, formats, complex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.runtime.modes import EagerMode


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def _both(
    build: Callable[[], nn.Module], use: Callable[[Any, torch.Tensor], Any], x: torch.Tensor,
    strides: bool = False,
) -> None:  # fmt: skip
    """Assert that a module's results, and the gradients of its input and parameters, are the
    CPU's."""
    found: dict[str, list[torch.Tensor | None]] = {}
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        module = build().to(device)
        given = x.detach().to(device).requires_grad_(x.is_floating_point() or x.is_complex())
        made = [t for t in torch.utils._pytree.tree_leaves(use(module, given))
                if isinstance(t, torch.Tensor)]  # fmt: skip
        wanting = [t for t in made if t.requires_grad]
        if wanting:
            torch.stack([t.abs().square().sum() for t in wanting]).sum().backward()
        found[device] = [*made, given.grad, *(p.grad for p in module.parameters())]
    for ours, theirs in zip(found["tpu"], found["cpu"], strict=True):
        if theirs is None or ours is None:
            assert ours is theirs
            continue
        assert ours.device.type == "tpu"
        assert not strides or ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_modules_with_packed_sequences(mode: EagerMode, kind: Any) -> None:
    def packed(module: nn.Module, x: torch.Tensor) -> Any:
        sequence = pack_padded_sequence(x, torch.tensor([5, 3, 4]), enforce_sorted=False)
        out, state = module(sequence)
        return pad_packed_sequence(out)[0], state

    _both(lambda: kind(3, 4, bidirectional=True), packed, _x(5, 3, 3))
    _both(lambda: kind(3, 4, 2, batch_first=True), lambda m, x: m(x), _x(2, 4, 3))


def test_fast_paths_of_attention_modules(mode: EagerMode) -> None:
    padding = torch.tensor([[0, 0, 1], [0, 0, 0]]).bool()

    def attend(module: Any, x: torch.Tensor) -> Any:
        with torch.no_grad():
            mask = padding.to(x.device)
            return module(x, x, x, key_padding_mask=mask), module(x, x, x, need_weights=False)[0]

    _both(lambda: nn.MultiheadAttention(4, 2, batch_first=True).eval(), attend, _x(2, 3, 4))

    def encode(module: Any, x: torch.Tensor) -> Any:
        with torch.no_grad():
            made = module(x, src_key_padding_mask=padding.to(x.device))
        return made[0, :2], made[1]  # what is computed at padded places is left open

    def encoder() -> nn.Module:
        layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 2).eval()

    _both(encoder, encode, _x(2, 3, 4))


def test_embedding_with_a_longest_norm(mode: EagerMode) -> None:
    def look_up(module: Any, x: torch.Tensor) -> Any:
        return module(x), module.weight.detach().clone()

    indices = torch.tensor([[0, 2, 4], [4, 4, 1]])
    _both(lambda: nn.Embedding(5, 3, max_norm=0.5), look_up, indices)


VARIANTS: list[dict[str, Any]] = [
    {"is_causal": True}, {"scale": 0.3}, {"mask": torch.rand(5, 5) > 0.3},
    {"mask": torch.randn(2, 1, 5, 5)}, {"enable_gqa": True, "is_causal": True},
]  # fmt: skip


@pytest.mark.parametrize("options", VARIANTS, ids=lambda o: "-".join(o))
def test_scaled_dot_product_attention(mode: EagerMode, options: dict[str, Any]) -> None:
    def attend(_: Any, x: torch.Tensor) -> Any:
        given = {k: v for k, v in options.items() if k != "mask"}
        mask = options.get("mask")
        key = x[:, :2] if options.get("enable_gqa") else x
        return functional.scaled_dot_product_attention(
            x, key, key, attn_mask=None if mask is None else mask.to(x.device), **given
        )

    _both(nn.Identity, attend, _x(2, 4, 5, 4))


def test_attention_of_other_shapes_and_chosen_kernels(mode: EagerMode) -> None:
    def attend(_: Any, x: torch.Tensor) -> Any:
        sdpa = functional.scaled_dot_product_attention
        with sdpa_kernel(SDPBackend.MATH):
            q = x.detach().requires_grad_()
            (first,) = torch.autograd.grad(sdpa(q, q, q).square().sum(), q, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), q)
        return (
            sdpa(x[0, 0], x[0, 0], x[0, 0]),
            sdpa(x[0], x[0], x[0]),
            sdpa(x, x[:1], x[:1]),
            second,
        )

    _both(nn.Identity, attend, _x(2, 2, 5, 4))


def test_channels_last_is_kept_through_modules(mode: EagerMode) -> None:
    def planes() -> nn.Module:
        layers: Any = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3, groups=2), nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 4, 2, 2),
        )  # fmt: skip
        made: nn.Module = layers.to(memory_format=torch.channels_last)
        return made

    def each(module: Any, x: torch.Tensor) -> Any:
        made = []
        for layer in module:
            x = layer(x)
            made.append(x)
        return made

    x = _x(2, 3, 10, 10).to(memory_format=torch.channels_last)
    _both(planes, each, x, strides=True)
    volumes = _x(2, 3, 4, 4, 4).to(memory_format=torch.channels_last_3d)
    _both(lambda: nn.Sequential(nn.Conv3d(3, 4, 2), nn.ReLU()), each, volumes, strides=True)


def test_complex_modules_and_spectra(mode: EagerMode) -> None:
    x = torch.complex(_x(2, 4), _x(4, 2).t())
    _both(lambda: nn.Linear(4, 3).to(torch.complex64), lambda m, x: m(x), x)

    def spectra(_: Any, x: torch.Tensor) -> Any:
        half = torch.fft.rfft(x, norm="ortho")
        return half, torch.fft.irfft(half, n=6), torch.fft.fft2(x), torch.view_as_real(half).sum(0)

    _both(nn.Identity, spectra, _x(3, 6))


def test_parametrized_pruned_and_lazy_modules(mode: EagerMode) -> None:
    _both(lambda: parametrizations.weight_norm(nn.Linear(4, 3)), lambda m, x: m(x), _x(2, 4))
    _both(lambda: parametrizations.spectral_norm(nn.Linear(4, 3)), lambda m, x: m(x), _x(2, 4))

    def pruned(module: Any, x: torch.Tensor) -> Any:
        prune.l1_unstructured(module, "weight", 0.3)
        return module(x), module.weight_mask

    _both(lambda: nn.Linear(6, 4), pruned, _x(2, 6))
    lazy = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(3))
    lazy.to("tpu")
    assert lazy(_x(2, 3, 5, 5).to("tpu")).shape == (2, 3)
    assert {p.device.type for p in lazy.parameters()} == {"tpu"}
