"""transformers and accelerate on device "tpu", called as their users call them, against the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)

import tpu_perf.runtime.device  # noqa: F401 - loads the device

accelerate = pytest.importorskip(
    "accelerate", reason="needs accelerate: pip install 'tpu_perf[conformance]'"
)

_SIZES: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 32, "pad_token_id": 1,
}  # fmt: skip
_NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_LEARNING_RATE = 1e-3


def _save(model: Any, directory: Path) -> str:
    """The model, with a tokenizer of a few words."""
    words = ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "the", "cat", "sat", "a", "good", "bad", "film")
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(
        directory
    )
    model.save_pretrained(directory)
    return str(directory)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    config = LlamaConfig(**_SIZES, num_key_value_heads=1, bos_token_id=2, eos_token_id=3)
    return _save(LlamaForCausalLM(config), tmp_path_factory.mktemp("decoder"))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**_SIZES, **_NO_DROPOUT))
    return _save(model, tmp_path_factory.mktemp("classifier"))


@pytest.mark.parametrize("device_map", ["tpu", {"": "tpu:0"}, "auto"], ids=str)
def test_from_pretrained_loads_onto_the_device(decoder: str, device_map: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(decoder, device_map=device_map)
    assert {str(p.device) for p in model.parameters()} == {"tpu:0"}
    ids = torch.tensor([[5, 6, 7]])
    want = AutoModelForCausalLM.from_pretrained(decoder)(ids).logits
    torch.testing.assert_close(model(ids.to(model.device)).logits.cpu(), want)


def test_a_pipeline_classifies_as_on_the_cpu(classifier: str) -> None:
    films = ["good film", "the cat sat a bad film"]
    ours = pipeline("text-classification", model=classifier, device="tpu")
    theirs = pipeline("text-classification", model=classifier, device="cpu")
    assert ours.device.type == ours.model.device.type == "tpu"
    for got, want in zip(ours(films, batch_size=2), theirs(films, batch_size=2), strict=True):
        assert got["label"] == want["label"]
        assert got["score"] == pytest.approx(want["score"], abs=1e-5)


def test_a_pipeline_writes_the_text_that_the_cpu_writes(decoder: str) -> None:
    greedy = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    written = [
        pipeline("text-generation", model=decoder, device=device)("the cat", **greedy)
        for device in ("tpu", "cpu")
    ]
    assert written[0] == written[1]


class _Films(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([2, 5 + i % 6, 6, 3]), "labels": torch.tensor(i % 2),
                "attention_mask": torch.ones(4, dtype=torch.long)}  # fmt: skip


def _train(classifier: str, out: Path, resume: bool = False, **more: Any) -> Any:
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=str(out), per_device_train_batch_size=4, logging_steps=1, report_to=[],
        learning_rate=_LEARNING_RATE, disable_tqdm=True, **more,
    )  # fmt: skip
    model = BertForSequenceClassification.from_pretrained(classifier)
    trainer = Trainer(model=model, args=arguments, train_dataset=_Films(), eval_dataset=_Films())
    trainer.train(resume_from_checkpoint=resume or None)
    return trainer


def _losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_the_trainer_takes_the_device_and_learns_as_on_the_cpu(
    classifier: str, tmp_path: Path
) -> None:
    trainer = _train(classifier, tmp_path / "tpu", num_train_epochs=2, save_steps=3)
    assert trainer.args.device.type == "tpu"
    assert {p.device.type for p in trainer.model.parameters()} == {"tpu"}
    on_host = _train(classifier, tmp_path / "cpu", num_train_epochs=2, use_cpu=True)
    assert len(_losses(trainer)) == 4
    assert _losses(trainer) == pytest.approx(_losses(on_host), abs=1e-4)
    evaluated = trainer.evaluate()["eval_loss"]
    assert evaluated == pytest.approx(on_host.evaluate()["eval_loss"], abs=1e-4)
    resumed = _train(classifier, tmp_path / "tpu", resume=True, num_train_epochs=2)
    assert _losses(resumed)[-1] == pytest.approx(_losses(trainer)[-1], abs=1e-5)
    for ours, theirs in zip(resumed.model.parameters(), trainer.model.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=0, atol=_LEARNING_RATE / 20)


def test_the_trainer_compiles_with_the_backend_of_the_device(
    classifier: str, tmp_path: Path
) -> None:
    compiled = _train(
        classifier, tmp_path / "compiled", max_steps=2,
        torch_compile=True, torch_compile_backend="tpu",
    )  # fmt: skip
    on_host = _train(classifier, tmp_path / "cpu", max_steps=2, use_cpu=True)
    assert _losses(compiled) == pytest.approx(_losses(on_host), abs=1e-4)


def test_an_unknown_compile_backend_is_still_refused() -> None:
    from accelerate.utils import DynamoBackend

    assert DynamoBackend("TPU").value == "TPU"
    assert DynamoBackend("INDUCTOR") is DynamoBackend.INDUCTOR
    with pytest.raises(ValueError, match="GPU"):
        DynamoBackend("GPU")


def _accelerated(**options: Any) -> tuple[str, list[float]]:
    """The device that accelerate chose, and the losses of a loop as its documentation has it."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(**options)
    torch.manual_seed(0)
    net: Any = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.ones(12, 1))
    optimizer: Any = torch.optim.AdamW(net.parameters(), lr=0.01)
    loader: Any = torch.utils.data.DataLoader(data, batch_size=4)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    losses = []
    for inputs, targets in loader:
        with accelerator.accumulate(net):
            loss = torch.nn.functional.mse_loss(net(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(accelerator.gather_for_metrics(loss.detach())))
    return inputs.device.type, losses


def test_accelerate_prepares_for_the_device_and_steps_as_on_the_cpu() -> None:
    device, losses = _accelerated()
    assert device == "tpu"
    _, want = _accelerated(cpu=True)
    assert losses == pytest.approx(want, abs=1e-5)
    device, low = _accelerated(mixed_precision="bf16")
    assert device == "tpu"
    assert low == pytest.approx(want, rel=0.05)
    assert low != losses, "nothing ran in bfloat16"
    _, compiled = _accelerated(dynamo_backend="tpu")
    assert compiled == pytest.approx(want, abs=1e-5)
