"""Five tiny models of `transformers`, each in a training step with AdamW."""

from __future__ import annotations

from typing import Any

NAMES = ("gpt2", "bert", "llama", "qwen3", "vit")
_VOCABULARY, _BATCH, _LENGTH = 256, 2, 32


def _model(name: str) -> Any:
    """A model with random weights, the same in every process. Attention is written out, because
    TorchTPU's own cannot run on a CPU."""
    import torch
    import transformers

    hf: Any = transformers

    torch.manual_seed(0)
    written_out = {"attn_implementation": "eager"}
    # TorchTPU's .to() parts weights that a model ties, and then trains another model.
    untied = {**written_out, "tie_word_embeddings": False}
    decoder = {
        "vocab_size": _VOCABULARY, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 64, **written_out,
    }  # fmt: skip
    if name == "gpt2":
        return hf.GPT2LMHeadModel(hf.GPT2Config(
            vocab_size=_VOCABULARY, n_positions=64, n_embd=64, n_layer=2, n_head=4,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **untied))  # fmt: skip
    if name == "bert":
        return hf.BertForMaskedLM(hf.BertConfig(
            vocab_size=_VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=128, max_position_embeddings=64, hidden_dropout_prob=0,
            attention_probs_dropout_prob=0, **untied))  # fmt: skip
    if name == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**decoder))
    if name == "qwen3":
        return hf.Qwen3ForCausalLM(hf.Qwen3Config(head_dim=16, **decoder))
    return hf.ViTForImageClassification(hf.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        image_size=32, patch_size=8, num_labels=10, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0, **written_out))  # fmt: skip


def _batch(name: str, device: str) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    if name == "vit":
        return {
            "pixel_values": torch.rand(_BATCH, 3, 32, 32, generator=generator).to(device),
            "labels": torch.randint(0, 10, (_BATCH,), generator=generator).to(device),
        }
    tokens = torch.randint(0, _VOCABULARY, (_BATCH, _LENGTH), generator=generator).to(device)
    # With a mask given, transformers does not look for packed sequences, which takes a cumsum
    # that TorchTPU's compiler cannot pass to a plugin.
    return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


class ModelStep:
    """A training step: forward, backward, AdamW. Compiled where a backend is named."""

    def __init__(self, name: str, device: str, backend: str | None) -> None:
        import torch

        self.model = _model(name).train().to(device)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        batch = _batch(name, device)
        forward, update = self.model, optimizer.step
        if backend is not None:
            forward = torch.compile(self.model, backend=backend)
            update = torch.compile(optimizer.step, backend=backend)

        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss: torch.Tensor = forward(**batch).loss
            loss.backward()
            update()
            return loss.detach()

        self.step = step
