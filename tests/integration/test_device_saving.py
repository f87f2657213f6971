"""Saving and loading tensors and state of device "tpu": pickle, torch.save, safetensors."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"

DTYPES = [
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8,
    torch.bool, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


def _saved(what: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(what, file, _use_new_zipfile_serialization=options.pop("zipped", True))
    file.seek(0)
    return torch.load(file, **options)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    host = tensor.cpu()
    return host if host.dtype in (torch.bool, torch.complex64) else host.view(torch.uint8)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_moves_between_cpu_and_tpu(zipped: bool) -> None:
    dtypes = DTYPES if zipped else DTYPES[:-1]  # torch cannot load float8 from the old format
    host = {str(d): torch.tensor([0, 1, 3, 100]).to(d) for d in dtypes}
    device = {name: tensor.to("tpu") for name, tensor in host.items()}
    stays = _saved(device, zipped=zipped)
    to_cpu = _saved(device, zipped=zipped, map_location="cpu")
    to_tpu = _saved(host, zipped=zipped, map_location="tpu")
    for found, where in ((stays, "tpu"), (to_cpu, "cpu"), (to_tpu, "tpu")):
        for name, tensor in host.items():
            assert (found[name].device.type, found[name].dtype) == (where, tensor.dtype)
            assert torch.equal(_bits(found[name]), _bits(tensor))


def test_every_spelling_of_the_location_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.arange(4.0)}, path)
    spellings: list[Any] = ["tpu:0", torch.device("tpu"), {"cpu": "tpu:0"}]
    for location in spellings:
        assert torch.load(path, map_location=location)["a"].tolist() == [0, 1, 2, 3]

    def to_tpu(storage: Any, location: str) -> Any:
        return storage.to(device="tpu")

    mapped = torch.load(path, map_location=to_tpu, mmap=True)["a"]
    assert mapped.device.type == "tpu"
    assert mapped.tolist() == [0, 1, 2, 3]


def test_views_keep_geometry_and_sharing_in_a_file() -> None:
    base = torch.arange(16.0).view(4, 4).to("tpu")
    turned, part, again = _saved([base.t(), base[1:3, ::2], base])
    assert turned.stride() == (1, 4)
    assert torch.equal(turned, base.t())
    assert torch.equal(part, base[1:3, ::2])
    again[1, 0] = -1
    assert part[0, 0].item() == turned[0, 1].item() == -1


def test_pickle_keeps_types_and_values() -> None:
    made = torch.arange(4.0, device="tpu") * 2
    assert pickle.loads(pickle.dumps(made)).tolist() == [0, 2, 4, 6]
    parameter = pickle.loads(pickle.dumps(torch.nn.Parameter(made.t())))
    assert type(parameter) is torch.nn.Parameter
    assert parameter.device.type == "tpu"
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).to("tpu")
    copied = pickle.loads(pickle.dumps(model)).state_dict()
    assert all(torch.equal(copied[k], v) for k, v in model.state_dict().items())
    generator = torch.Generator(device="tpu").manual_seed(4)
    torch.rand(2, device="tpu", generator=generator)
    other = pickle.loads(pickle.dumps(generator))
    drawn = [torch.rand(3, device="tpu", generator=g) for g in (generator, other)]
    assert torch.equal(*drawn)


def test_training_goes_on_from_a_checkpoint_on_either_device() -> None:
    def train(model: Any, optimizer: Any, steps: int) -> list[float]:
        x = torch.linspace(-1, 1, 8).view(4, 2).to(model.weight.device)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def made(device: str) -> tuple[Any, Any]:
        model = torch.nn.Linear(2, 2).to(device)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def state(pair: tuple[Any, Any]) -> dict[str, Any]:
        return {"model": pair[0].state_dict(), "optimizer": pair[1].state_dict()}

    first = made("tpu")
    train(*first, 2)
    for device in ("cpu", "tpu"):
        stored = _saved(state(first), map_location=device, weights_only=True)
        second = made(device)
        second[0].load_state_dict(stored["model"])
        second[1].load_state_dict(stored["optimizer"])
        third = made("tpu")
        third[0].load_state_dict(second[0].state_dict())  # cpu state into a module on the tpu
        third[1].load_state_dict(copy.deepcopy(second[1].state_dict()))
        losses = [train(*pair, 2) for pair in (second, third)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_safetensors_reads_and_writes_device_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    ones = torch.ones(5, device="tpu")
    kept = {"a": torch.arange(12.0, device="tpu").view(3, 4), "b": ones.bfloat16()}
    save_file(kept, path)
    for where in ("tpu", "tpu:0", torch.device("tpu"), "cpu"):
        found = load_file(path, device=where)  # type: ignore[arg-type]
        assert all(found[k].device.type == torch.device(where).type for k in kept)
        assert all(torch.equal(found[k].cpu(), kept[k].cpu()) for k in kept)
    with safe_open(path, "pt", device="tpu") as file:
        assert sorted(file.keys()) == ["a", "b"]
        assert file.get_slice("a")[1:, :2].tolist() == [[4, 5], [8, 9]]
        assert file.get_tensor("b").device.type == "tpu"
    tied: Any = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)]).to("tpu")
    first, second = tied
    second.weight = first.weight
    save_model(tied, str(path))
    with torch.no_grad():
        saved = first.weight.clone()
        first.weight.zero_()
    load_model(tied, str(path))
    assert torch.equal(second.weight, saved)
