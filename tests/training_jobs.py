"""Tiny training jobs of four architectures, run on any device in any mode, for tests."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.runtime.modes import EagerMode, mode_set_to
from tpu_perf.runtime.random_numbers import reference_random
from tpu_perf.runtime.whole_step import WholeStep

MODES = ("strict", "debug", "defer_and_fuse", "compile", "whole_step")
EAGER = {
    "debug": EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING,
    "defer_and_fuse": EagerMode.DEFER_AND_FUSE,
}
BATCH, LENGTH, VOCABULARY = 2, 16, 64


def qwen3(dropout: float) -> torch.nn.Module:
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, attention_dropout=dropout,
            max_position_embeddings=32, use_cache=False,
        )
    )  # fmt: skip


def llama(dropout: float) -> torch.nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2, attention_dropout=dropout,
            max_position_embeddings=32, use_cache=False,
        )
    )  # fmt: skip


def gpt2(dropout: float) -> torch.nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=4, n_positions=32,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False,
        )
    )  # fmt: skip


def bert(dropout: float) -> torch.nn.Module:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=4, max_position_embeddings=32, hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )  # fmt: skip


MODELS: dict[str, Callable[[float], torch.nn.Module]] = {
    "qwen3": qwen3, "llama": llama, "gpt2": gpt2, "bert": bert,
}  # fmt: skip


def build(name: str, dropout: float = 0.0) -> torch.nn.Module:
    """A model with parameters from a fixed seed, in training mode, on the CPU."""
    torch.manual_seed(0)
    return MODELS[name](dropout).train()


def batches(steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator) for _ in range(steps)
    ]


def optimizer_of(module: torch.nn.Module, name: str) -> torch.optim.Optimizer:
    parameters = list(module.parameters())
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return torch.optim.AdamW(
        parameters, lr=3e-3, foreach=name == "adamw_foreach", fused=name == "adamw_fused"
    )


def train(
    model: torch.nn.Module,
    mode: str,
    steps: int,
    optimizer: str = "adamw_foreach",
    autocast: bool = False,
    seed: int = 7,
) -> tuple[list[float], list[float], torch.nn.Module]:
    """Losses, gradient norms and the trained model. `mode` "cpu" is torch on the CPU, drawing the
    device's random numbers."""
    model = copy.deepcopy(model)
    if mode == "cpu":
        with reference_random(seed):
            losses, norms = _steps(model, model, "cpu", steps, optimizer, autocast, False)
        return losses, norms, model
    with mode_set_to(EAGER.get(mode, EagerMode.DEFER_NEVER)):
        model.to("tpu")
        torch.manual_seed(seed)
        called: Any = torch.compile(model, backend="tpu") if mode == "compile" else model
        losses, norms = _steps(
            model, called, "tpu", steps, optimizer, autocast, mode == "whole_step"
        )
    return losses, norms, model


def _steps(
    model: torch.nn.Module, called: Any, device: str, steps: int, optimizer_name: str,
    autocast: bool, whole: bool,
) -> tuple[list[float], list[float]]:  # fmt: skip
    optimizer = optimizer_of(model, optimizer_name)

    def step(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            loss = called(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = torch.nn.utils.get_total_norm(
            [p.grad for p in model.parameters() if p.grad is not None]
        )
        optimizer.step()
        return loss.detach(), norm

    run = WholeStep(step, (optimizer,)) if whole else step
    losses, norms = [], []
    for ids in batches(steps):
        loss, norm = run(ids.to(device))
        losses.append(float(loss))
        norms.append(float(norm))
    if whole:
        assert isinstance(run, WholeStep)
        assert run.replays == steps - 3, run.why_recorded
    return losses, norms
