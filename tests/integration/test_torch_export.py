"""torch.export of models on device "tpu": run, saved, loaded, moved and compiled."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.export.passes import move_to_device_pass

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Attending(nn.Module):
    """What exported models are made of: parameters, a buffer, constants, a mask, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.norm = nn.LayerNorm(8)
        self.register_buffer("scale", torch.full((8,), 1.5))
        self.drop = nn.Dropout(0.5)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.norm(self.embedding(tokens)) * self.scale
        hidden = hidden + torch.arange(8, device=tokens.device) / 8
        hidden = self.drop(hidden.masked_fill(mask[..., None], 0.0))
        heads = hidden[:, None]
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return {"hidden": hidden, "attended": attended}


def _model() -> Attending:
    torch.manual_seed(0)
    return Attending().eval()


def _inputs(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    tokens = torch.randint(0, 10, (batch, 5), generator=generator)
    return tokens, torch.rand(batch, 5, generator=generator) > 0.5


def _on_device(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(t.to("tpu") for t in inputs)


def _saved_and_loaded(program: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def _same(got: dict[str, torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> None:
    wanted: dict[str, torch.Tensor] = _model()(*inputs)
    for name, value in wanted.items():
        torch.testing.assert_close(got[name].cpu(), value, rtol=1e-4, atol=1e-5)


def test_an_exported_program_is_saved_loaded_and_run_with_any_batch() -> None:
    batch = Dim("batch", min=2, max=64)
    program = torch.export.export(
        _model().to("tpu"), _on_device(_inputs(3)),
        dynamic_shapes={"tokens": {0: batch}, "mask": {0: batch}},
    )  # fmt: skip
    loaded = _saved_and_loaded(program)
    assert {t.device.type for t in loaded.state_dict.values()} == {"tpu"}
    for each in (program, loaded, loaded.run_decompositions()):
        _same(each.module()(*_on_device(_inputs(7))), _inputs(7))
    compiled = torch.compile(loaded.module(), backend="tpu")
    for size in (3, 7):
        _same(compiled(*_on_device(_inputs(size))), _inputs(size))


def test_programs_move_between_the_cpu_and_the_device() -> None:
    inputs = _inputs(3)
    on_host = torch.export.export(_model(), inputs)
    here = move_to_device_pass(on_host, "tpu")
    _same(here.module()(*_on_device(inputs)), inputs)
    _same(move_to_device_pass(_saved_and_loaded(here), "cpu").module()(*inputs), inputs)


def test_an_exported_model_in_training_has_gradients() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh())

        def forward(self, x: torch.Tensor) -> Any:
            return self.layers(x).square().sum()

    torch.manual_seed(0)
    host = Plain()
    x = torch.randn(6, 4)
    model = Plain()
    model.load_state_dict(host.state_dict())
    module = torch.export.export(model.to("tpu"), (x.to("tpu"),)).module()
    module(x.to("tpu")).backward()
    host(x).backward()
    theirs = dict(host.named_parameters())
    for name, parameter in module.named_parameters():
        wanted = theirs[name].grad
        assert wanted is not None
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.cpu(), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        dict(module.named_buffers())["layers.1.running_mean"].cpu(),
        dict(host.named_buffers())["layers.1.running_mean"],
    )


def test_written_buffers_written_inputs_and_branches_survive_saving() -> None:
    class Counting(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            x.mul_(2)
            turned: torch.Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
            return turned + self.count + torch.tensor([1.0, 2.0], device=x.device)

    program = torch.export.export(Counting().to("tpu"), (torch.ones(2, device="tpu"),))
    module, host = _saved_and_loaded(program).module(), Counting()
    for sign in (1.0, -1.0):
        x, here = torch.full((2,), sign), torch.full((2,), sign, device="tpu")
        torch.testing.assert_close(module(here).cpu(), host(x))
        torch.testing.assert_close(here.cpu(), x)
