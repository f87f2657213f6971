"""Model FLOPs of a training step of a dozen architectures, against closed forms worked out by hand.

The calls are those that torch makes on the CPU. MACs are multiply-adds: two FLOPs each; a training
step is the forward pass and twice that for the gradients, less those that nothing needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from tests.aten_calls import recorded
from tpu_perf.analysis.op_flops import CAUSAL, FULL, Call, conventions, flops_of_call

transformers = pytest.importorskip("transformers")

Step = Callable[[], Any]
BATCH, LENGTH, VOCABULARY = 2, 16, 50
TOKENS = BATCH * LENGTH
WIDTH, LAYERS, HEADS, HEAD = 32, 2, 4, 8
INNER = 48
TRAINING = 3  # the forward pass, the gradients of the inputs, those of the weights


@dataclass(frozen=True, kw_only=True)
class Expected:
    """FLOPs of a step: of products and convolutions, and of attention by convention. `executed`:
    what fused attention computes again on the way back, in full."""

    products: float
    causal: float = 0.0
    full: float = 0.0
    executed: float = 0.0
    note: str | None = None


def attention(pairs: float, sequences: int = BATCH, heads: int = HEADS, d: int = 2 * HEAD) -> float:
    """A training step of attention; d is that of queries and of values together."""
    return TRAINING * 2 * pairs * sequences * heads * d


def decoder(per_token: float, *, layers: int = LAYERS, note: str | None = None,
            causal: bool = True, head: int = HEAD) -> Expected:  # fmt: skip
    """A causal language model whose layers need so many MACs a token, with a head of its own."""
    macs = layers * per_token + WIDTH * VOCABULARY
    square = LENGTH**2
    full = attention(layers * square, d=2 * head)
    return Expected(
        products=TRAINING * 2 * TOKENS * macs,
        causal=full / 2 if causal else full,
        full=full,
        # The scores once more: q times k in each layer.
        executed=2.0 * layers * square * BATCH * HEADS * head,
        note=note,
    )


def language_model(name: str, **settings: Any) -> Step:
    torch.manual_seed(0)
    kind = getattr(transformers, f"{name}Config")(vocab_size=VOCABULARY, **settings)
    head = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    model = getattr(transformers, name + head)(kind).train()
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    return lambda: model(input_ids=ids, labels=ids).loss.backward()


def hf_model(name: str, inputs: dict[str, torch.Tensor], **settings: Any) -> Step:
    torch.manual_seed(0)
    model = getattr(transformers, name + "Model")(
        getattr(transformers, f"{name}Config")(**settings)
    ).train()
    return lambda: model(**inputs)[0].sum().backward()


COMMON = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
GROUPED = {**COMMON, "num_key_value_heads": 2, "intermediate_size": INNER}
GROUPED_PROJECTIONS = 2 * WIDTH**2 + 2 * WIDTH * 2 * HEAD  # q and o; k and v of 2 heads
GATED = 3 * WIDTH * INNER


def llama() -> tuple[Step, Expected]:
    return language_model("Llama", **GROUPED), decoder(GROUPED_PROJECTIONS + GATED)


def qwen3_wide_heads() -> tuple[Step, Expected]:
    """Heads of 16, more than width / heads; the norms of q and k count nothing."""
    step = language_model("Qwen3", **GROUPED, head_dim=16)
    return step, decoder(2 * WIDTH * HEADS * 16 + 2 * WIDTH * 2 * 16 + GATED, head=16)


def gpt2() -> tuple[Step, Expected]:
    step = language_model("GPT2", n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, resid_pdrop=0.0,
                          attn_pdrop=0.0, embd_pdrop=0.0, bos_token_id=0,
                          eos_token_id=0)  # fmt: skip
    return step, decoder(4 * WIDTH**2 + 2 * WIDTH * 4 * WIDTH)


def mistral() -> tuple[Step, Expected]:
    """Its window comes as a mask, whose values are not recorded: full, and said so."""
    step = language_model("Mistral", **GROUPED, sliding_window=4)
    return step, decoder(GROUPED_PROJECTIONS + GATED, causal=False, note="attention mask")


def mixtral() -> tuple[Step, Expected]:
    """2 of 4 experts a token, and the router over all of them."""
    step = language_model("Mixtral", **GROUPED, num_local_experts=4, num_experts_per_tok=2)
    return step, decoder(GROUPED_PROJECTIONS + 2 * GATED + WIDTH * 4, note="rows beyond")


def qwen3_moe() -> tuple[Step, Expected]:
    """3 of 8 small experts a token."""
    step = language_model("Qwen3Moe", **GROUPED, head_dim=HEAD, moe_intermediate_size=24,
                          num_experts=8, num_experts_per_tok=3)  # fmt: skip
    macs = GROUPED_PROJECTIONS + 3 * (3 * WIDTH * 24) + WIDTH * 8
    return step, decoder(macs, note="rows beyond")


def bert() -> tuple[Step, Expected]:
    torch.manual_seed(0)
    kind = transformers.BertConfig(
        vocab_size=VOCABULARY, **COMMON, intermediate_size=INNER,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForMaskedLM(kind).train()
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    macs = 4 * WIDTH**2 + 2 * WIDTH * INNER
    expected = decoder(macs + WIDTH**2 / LAYERS, causal=False)  # the head's own dense layer
    return lambda: model(input_ids=ids, labels=ids).loss.backward(), expected


def bart() -> tuple[Step, Expected]:
    """An encoder that sees all, a decoder that sees the past, and all of the encoder."""
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder")
             for name, value in (("layers", 1), ("attention_heads", HEADS),
                                 ("ffn_dim", INNER))}  # fmt: skip
    torch.manual_seed(0)
    kind = transformers.BartConfig(vocab_size=VOCABULARY, d_model=WIDTH, **sides, dropout=0.0)
    model = transformers.BartForConditionalGeneration(kind).train()
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    encoder = 4 * WIDTH**2 + 2 * WIDTH * INNER
    square = LENGTH**2
    expected = Expected(
        products=TRAINING * 2 * TOKENS * (2 * encoder + 4 * WIDTH**2 + WIDTH * VOCABULARY),
        causal=attention(square + square / 2 + square),
        full=attention(3 * square),
        executed=2.0 * 3 * square * BATCH * HEADS * HEAD,
    )
    return lambda: model(input_ids=ids, labels=ids).loss.backward(), expected


def t5() -> tuple[Step, Expected]:
    """Attention to oneself has a learned bias, so torch takes separate products; that to the
    encoder has a mask. Both count in full under either convention."""
    short = LENGTH // 2
    inputs = {
        "input_ids": torch.randint(0, VOCABULARY, (BATCH, LENGTH)),
        "decoder_input_ids": torch.randint(0, VOCABULARY, (BATCH, short)),
    }
    step = hf_model("T5", inputs, vocab_size=VOCABULARY, d_model=WIDTH, d_kv=HEAD, d_ff=INNER,
                    num_layers=1, num_heads=HEADS, dropout_rate=0.0)  # fmt: skip
    layer = 4 * WIDTH**2 + 2 * WIDTH * INNER
    there = layer + 2 * WIDTH**2  # keys and values of the encoder's tokens for the decoder
    here = layer + 2 * WIDTH**2  # queries and outputs of the decoder's
    pairs = LENGTH**2 + short**2 + short * LENGTH
    products = TRAINING * 2 * BATCH * (LENGTH * there + short * here) + attention(pairs)
    again = 2.0 * short * LENGTH * BATCH * HEADS * HEAD  # of the fused one
    return step, Expected(products=products, executed=again, note="attention mask")


def deepseek_latent_attention() -> tuple[Step, Expected]:
    """Queries and keys of 12, values of 8, through latents of 12 and 8."""
    inputs = {"input_ids": torch.randint(0, VOCABULARY, (BATCH, LENGTH))}
    step = hf_model("DeepseekV3", inputs, vocab_size=VOCABULARY, hidden_size=WIDTH,
                    num_hidden_layers=1, first_k_dense_replace=1, num_attention_heads=HEADS,
                    num_key_value_heads=HEADS, intermediate_size=INNER, q_lora_rank=12,
                    kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
                    head_dim=4)  # fmt: skip
    macs = (
        WIDTH * 12 + 12 * HEADS * (8 + 4)  # queries down and up
        + WIDTH * (8 + 4) + 8 * HEADS * (8 + 8)  # keys and values down and up
        + HEADS * 8 * WIDTH + GATED
    )  # fmt: skip
    everything = attention(LENGTH**2, d=12 + 8)  # unlike widths: torch uses separate products
    return step, Expected(products=TRAINING * 2 * TOKENS * macs + everything)


def vit() -> tuple[Step, Expected]:
    """16 patches and a class token; nothing needs the gradient of the picture."""
    step = hf_model("ViT", {"pixel_values": torch.randn(BATCH, 3, 16, 16)}, **COMMON,
                    intermediate_size=INNER, image_size=16, patch_size=4)  # fmt: skip
    patches = 2 * BATCH * 16 * (WIDTH * 3 * 4 * 4)
    layers = 2 * BATCH * 17 * LAYERS * (4 * WIDTH**2 + 2 * WIDTH * INNER)
    pooler = 2 * BATCH * WIDTH**2  # forward only: its output is not used
    full = attention(LAYERS * 17**2)
    return step, Expected(
        products=2 * patches + TRAINING * layers + pooler, causal=full, full=full,
        executed=2.0 * LAYERS * 17**2 * BATCH * HEADS * HEAD,
    )  # fmt: skip


def mobile_net() -> tuple[Step, Expected]:
    """A strided stem, a depthwise and a pointwise convolution, and a classifier."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 16, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    pictures = torch.randn(BATCH, 3, 12, 12)
    stem = 2 * BATCH * 36 * (8 * 3 * 9)
    rest = 2 * BATCH * 36 * (8 * 9 + 16 * 8) + 2 * BATCH * 16 * 10
    return lambda: model(pictures).sum().backward(), Expected(products=2 * stem + 3 * rest)


def u_net() -> tuple[Step, Expected]:
    """Down by a strided convolution, up by a transposed one, in one and in three dimensions."""
    flat = nn.Sequential(nn.Conv1d(2, 4, 4, stride=2, padding=1), nn.ConvTranspose1d(4, 2, 2, 2))
    solid = nn.Sequential(nn.Conv3d(1, 2, 2, stride=2), nn.ConvTranspose3d(2, 1, 2, stride=2))
    waves, volumes = torch.randn(BATCH, 2, 10), torch.randn(BATCH, 1, 4, 4, 4)
    down = 2 * BATCH * (5 * (4 * 2 * 4) + 8 * (2 * 1 * 8))
    up = 2 * BATCH * (5 * (4 * 2 * 2) + 8 * (2 * 1 * 8))
    step = lambda: (flat(waves).sum() + solid(volumes).sum()).backward()  # noqa: E731
    return step, Expected(products=2 * down + 3 * up)


def lstm() -> tuple[Step, Expected]:
    """Two layers of two directions over embedded words; four gates each."""
    words, net = nn.Embedding(VOCABULARY, 8), nn.LSTM(8, 16, 2, bidirectional=True)
    ids = torch.randint(0, VOCABULARY, (5, 3))
    macs = 2 * (4 * 16 * (8 + 16) + 4 * 16 * (32 + 16))
    return lambda: net(words(ids))[0].sum().backward(), Expected(products=3 * 2 * 15 * macs)


def recommender() -> tuple[Step, Expected]:
    """Bags of embeddings count nothing; their dot products and the two towers do."""
    bag, bottom, top = nn.EmbeddingBag(100, 8), nn.Linear(5, 8), nn.Linear(1, 1)
    ids, dense = torch.randint(0, 100, (6, 3)), torch.randn(6, 5)

    def step() -> None:
        crossed = torch.bmm(bag(ids).unsqueeze(1), bottom(dense).unsqueeze(2))
        top(crossed.flatten(1)).sum().backward()

    return step, Expected(products=2 * 6 * (2 * 5 * 8 + 3 * 8 + 3 * 1))


def mamba() -> tuple[Step, Expected]:
    """One layer: depthwise convolution over 19 padded points, a scan that reads its state."""
    inputs = {"input_ids": torch.randint(0, VOCABULARY, (BATCH, LENGTH))}
    step = hf_model("Mamba", inputs, vocab_size=VOCABULARY, hidden_size=WIDTH,
                    num_hidden_layers=1, state_size=4)  # fmt: skip
    wide = 2 * WIDTH
    macs = TOKENS * (WIDTH * 2 * wide + wide * (2 + 2 * 4) + 2 * wide + wide * WIDTH)
    convolution, read_out = BATCH * 19 * wide * 4, TOKENS * wide * 4
    return step, Expected(products=TRAINING * 2 * (macs + convolution + read_out))


ARCHITECTURES = {
    build.__name__: build
    for build in (llama, qwen3_wide_heads, gpt2, mistral, mixtral, qwen3_moe, bert, bart, t5,
                  deepseek_latent_attention, vit, mobile_net, u_net, lstm, recommender, mamba)
}  # fmt: skip


@cache
def measured(name: str) -> tuple[list[Call], Expected, int]:
    """The calls of a step, what is expected of them, and what torch's own counter counts."""
    step, expected = ARCHITECTURES[name]()
    calls = recorded(step)
    with FlopCounterMode(display=False) as counter:
        step()
    return calls, expected, counter.get_total_flops()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_model_flops_by_hand(name: str) -> None:
    calls, expected, _ = measured(name)
    for convention, of_attention in ((CAUSAL, expected.causal), (FULL, expected.full)):
        counted = [flops_of_call(call, convention) for call in calls]
        assert [one.reason for one in counted if one.model is None] == []
        assert sum(one.model or 0 for one in counted) == expected.products + of_attention
        notes = " ".join({one.note for one in counted if one.note})
        assert (expected.note or "") in notes
        assert bool(notes) == bool(expected.note)
        assert any("causal counted as half" in s for s in conventions(convention)) == (
            convention == CAUSAL
        )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_executed_flops_hold_what_attention_computes_again(name: str) -> None:
    calls, expected, _ = measured(name)
    executed = sum(flops_of_call(call, FULL).executed or 0 for call in calls)
    assert executed == expected.products + expected.full + expected.executed


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - {"mobile_net", "mamba"}))
def test_agrees_with_torchs_counter_on_the_ops_that_it_knows(name: str) -> None:
    """Left out: networks of grouped convolutions, whose weight gradient torch counts as if the
    groups were not there."""
    known = {f"aten::{packet.__name__}" for packet in flop_registry}
    calls, _, of_torch = measured(name)
    mine = sum(flops_of_call(call, FULL).executed or 0 for call in calls if call.name in known)
    assert mine == of_torch


def test_grouped_queries_change_no_flops() -> None:
    """As many queries as ever meet as many keys: 8 heads of queries over 2, and over 8."""

    def step(heads: int) -> Step:
        q = torch.randn(BATCH, 8, LENGTH, HEAD, requires_grad=True)
        k = torch.randn(BATCH, heads, LENGTH, HEAD, requires_grad=True)
        return lambda: (
            functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
            .sum()
            .backward()
        )

    for heads in (2, 8):
        counted = [flops_of_call(call).model for call in recorded(step(heads))]
        assert sum(filter(None, counted)) == attention(LENGTH**2 / 2, heads=8)
