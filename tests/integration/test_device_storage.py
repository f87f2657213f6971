"""torch.UntypedStorage on device "tpu": sharing, sizes, resizing, copies."""

from __future__ import annotations

import copy

import pytest
import torch

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.runtime.modes import EagerMode

tpu = torch.tpu  # type: ignore[attr-defined]


def _counted(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor that is memory of its own, and one that an op made."""
    host = torch.arange(float(count))
    return host.to("tpu"), host.to("tpu") + 0


def test_views_share_their_bases_storage_and_others_do_not(mode: EagerMode) -> None:
    for base in _counted(6):
        view, other = base.view(2, 3)[1], base.clone()
        assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr() != 0
        assert view.data_ptr() == base.data_ptr() + 12
        assert view.untyped_storage().nbytes() == len(base.untyped_storage()) == 24
        assert other.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
        assert other.device == base.untyped_storage().device == torch.device("tpu", 0)
        assert view.is_set_to(base[3:])
        assert not view.is_set_to(base[:3])


def test_storage_copies_in_every_direction() -> None:
    for tensor in _counted(4):
        storage = tensor.untyped_storage()
        host = storage.cpu()
        assert host.device.type == "cpu"
        assert torch.empty(0).set_(host).tolist() == [0, 1, 2, 3]
        clone = torch.empty(0, device="tpu").set_(storage.clone())
        clone[0] = 9
        tensor[1] = 7
        assert clone.tolist() == [9, 1, 2, 3]
        assert tensor.tolist() == [0, 7, 2, 3]
        target = torch.zeros(4, device="tpu")
        target.untyped_storage().copy_(storage)
        assert target.tolist() == [0, 7, 2, 3]
        target.untyped_storage().copy_(host)
        assert target.tolist() == [0, 1, 2, 3]
        back = torch.zeros(4)
        back.untyped_storage().copy_(storage)
        assert back.tolist() == [0, 7, 2, 3]
        whole = torch.zeros(2, dtype=torch.int64, device="tpu")
        whole.untyped_storage().copy_(storage)
        assert torch.equal(whole.cpu(), back.view(torch.int64))
    with pytest.raises(RuntimeError, match="size does not match, self was 16 bytes"):
        target.untyped_storage().copy_(torch.UntypedStorage(8))
    assert torch.UntypedStorage([1, 2], device="tpu").tolist() == [1, 2]
    moved = torch.arange(3, dtype=torch.uint8).untyped_storage().to(device="tpu")
    assert moved.device.type == "tpu"
    assert [*moved] == [0, 1, 2]
    assert moved[1] == 1
    moved[1] = 5
    assert torch.empty(0, dtype=torch.uint8, device="tpu").set_(moved).tolist() == [0, 5, 2]
    assert moved.fill_(4).tolist() == [4, 4, 4]


def test_a_storage_made_alone_takes_the_dtype_of_its_first_tensor() -> None:
    storage = torch.UntypedStorage(16, device="tpu")
    assert (storage.nbytes(), storage.device.type) == (16, "tpu")
    matrix = torch.empty(0, device="tpu").set_(storage, 0, (2, 2), (2, 1))
    matrix.fill_(1.5)
    bits = torch.empty(0, dtype=torch.int32, device="tpu").set_(storage, 1, (2,), (2,))
    assert bits.tolist() == [0x3FC00000] * 2
    bits.zero_()
    assert matrix.tolist() == [[1.5, 0.0], [1.5, 0.0]]


def test_resizing_a_storage_frees_and_keeps_what_torch_keeps(mode: EagerMode) -> None:
    for tensor in _counted(1000):
        tpu.synchronize()
        before = tpu.memory_allocated()
        storage = tensor.untyped_storage()
        storage.resize_(0)
        assert (storage.nbytes(), storage.data_ptr()) == (0, 0)
        assert before - tpu.memory_allocated() == 4000
        storage.resize_(4000)
        tensor.copy_(torch.arange(1000.0))
        assert tensor[-1].item() == 999
        assert tensor.data_ptr() != 0
        storage.resize_(4008)
        longer = torch.empty(0, device="tpu").set_(storage, 998, (3,), (1,))
        longer[0] = -1
        longer[2] = 8
        assert tensor[-2:].tolist() == [-1, 999]
        assert longer.tolist() == [-1, 999, 8]


def test_resize_of_a_tensor_is_in_place_over_the_same_storage(mode: EagerMode) -> None:
    for device, host in ((t, torch.arange(6.0)) for t in _counted(6)):
        for x in (device, host):
            view = x[:2]
            x.resize_(2)
            x.resize_(2, 3)
            assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
            x.resize_(8)
            x[0] = 9
            assert view.tolist() == [9, 1]
            assert x[:6].tolist() == [9, 1, 2, 3, 4, 5]
            x.resize_(1, 2, 2, 1, memory_format=torch.channels_last)
        assert device.stride() == host.stride()
        assert torch.equal(device.cpu(), host)
    out = torch.empty(0, device="tpu")
    torch.add(torch.ones(2, 2, device="tpu"), 1, out=out)
    assert out.tolist() == [[2, 2], [2, 2]]


def test_set_points_a_tensor_at_other_memory(mode: EagerMode) -> None:
    for base in _counted(6):
        x = torch.empty(0, device="tpu")
        x.set_(base)  # type: ignore[call-overload]
        x[0] = 9
        assert base[0].item() == 9
        x.set_(base.untyped_storage(), 2, (2, 2), (2, 1))
        assert x.tolist() == [[2, 3], [4, 5]]
        x.set_(base.untyped_storage(), 4, (4,), (1,))  # beyond the end: torch lets it grow
        assert x.tolist()[:2] == [4, 5]
        assert base.untyped_storage().nbytes() == 32
        x.set_()  # type: ignore[call-overload]
        assert x.numel() == 0


def test_data_assignment_moves_and_replaces_in_place() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.data = parameter.data.to("tpu")
    assert parameter.device.type == "tpu"
    assert type(parameter) is torch.nn.Parameter
    (parameter * 2).sum().backward()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [2, 2, 2]
    parameter.data = torch.zeros(2, 2, device="tpu")
    parameter.data.add_(3)
    assert parameter.tolist() == [[3, 3], [3, 3]]


def test_deepcopy_keeps_sharing_and_copies_values(mode: EagerMode) -> None:
    for base in _counted(4):
        twin, view = copy.deepcopy((base, base[1:]))
        twin[1] = 9
        assert view.tolist() == [9, 2, 3]
        assert base.tolist() == [0, 1, 2, 3]
        base.add_(1)
        assert twin.tolist() == [0, 9, 2, 3]
    model = torch.nn.Linear(2, 2).to("tpu")
    copied = copy.deepcopy(model)
    assert copied.weight.device.type == "tpu"
    with torch.no_grad():
        copied.weight.zero_()
    assert model.weight.abs().sum().item() > 0


def test_sending_to_another_process_says_what_to_do() -> None:
    storage = torch.ones(2, device="tpu").untyped_storage()
    with pytest.raises(RuntimeError, match=r"send tensor\.cpu\(\)"):
        torch.multiprocessing.reductions.reduce_storage(storage)
