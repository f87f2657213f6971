"""Training steps of four architectures on device "tpu" against torch on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.training_jobs import MODELS, MODES, build, train

#: bf16 autocast rounds at other places than the CPU's kernels do: three decimal digits agree.
TOLERANCE = {False: 2e-5, True: 2e-2}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_losses_gradients_and_parameters_equal_torch_on_cpu(name: str, mode: str) -> None:
    model = build(name, dropout=0.1)
    losses, norms, reference = train(model, "cpu", 4)
    found_losses, found_norms, trained = train(model, mode, 4)
    assert found_losses == pytest.approx(losses, rel=TOLERANCE[False])
    assert found_norms == pytest.approx(norms, rel=10 * TOLERANCE[False])
    for ours, theirs in zip(trained.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["strict", "defer_and_fuse", "compile", "whole_step"])
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_bf16_autocast_follows_cpu_autocast(name: str, mode: str) -> None:
    model = build(name)
    losses, norms, _ = train(model, "cpu", 4, "adamw_fused", autocast=True)
    found_losses, found_norms, _ = train(model, mode, 4, "adamw_fused", autocast=True)
    assert found_losses == pytest.approx(losses, rel=TOLERANCE[True])
    assert found_norms == pytest.approx(norms, rel=5 * TOLERANCE[True])


@pytest.mark.parametrize("optimizer", ["adamw_foreach", "adamw_fused", "adamw_loop", "sgd"])
def test_unmodified_optimizers(optimizer: str) -> None:
    model = build("llama")
    losses, _, reference = train(model, "cpu", 5, optimizer)
    found, _, trained = train(model, "strict", 5, optimizer)
    assert found == pytest.approx(losses, rel=1e-5)
    for ours, theirs in zip(trained.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-4)


def test_tied_weights_stay_tied() -> None:
    model = build("gpt2").to("tpu")
    assert model.lm_head.weight is model.transformer.wte.weight  # type: ignore[union-attr]
