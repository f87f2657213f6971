"""Models split by torch's own tensor parallel API, given to one process that drives all devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from tpu_perf.errors import WorkloadError
from tpu_perf.record.plan import ShardingPlan
from tpu_perf.sharding.assignment import ParameterFacts, ShardingError, assign
from tpu_perf.workloads.parallelised import keeping_whole_values, made_whole


@pytest.fixture
def eight_ranks() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 48), torch.nn.ReLU(), torch.nn.Linear(48, 16))


def _split(model: torch.nn.Module) -> torch.nn.Module:
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("fsdp", "tensor"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(model, mesh["tensor"], plan)


def test_the_split_is_read_and_the_values_are_whole(eight_ranks: None) -> None:
    with keeping_whole_values() as kept:
        model = _split(_model())
    found = made_whole(model, kept, "job")
    assert found == {
        "0.weight": (("tensor",), ()), "0.bias": (("tensor",),),
        "2.weight": ((), ("tensor",)), "2.bias": ((),),
    }  # fmt: skip
    assert not dist.is_initialized()
    x, whole = torch.randn(3, 16), _model()
    for mine, its in zip(model.parameters(), whole.parameters(), strict=True):
        assert type(mine) is torch.nn.Parameter
        assert torch.equal(mine, its)
    assert torch.equal(model(x), whole(x))  # torch's hooks for DTensor are gone


def test_a_part_alone_is_refused(eight_ranks: None) -> None:
    model = _split(_model())
    with keeping_whole_values() as kept:
        pass
    with pytest.raises(WorkloadError, match=r"only a part of 0\.weight is left"):
        made_whole(model, kept, "job")


def test_the_api_is_as_before_afterwards() -> None:
    with keeping_whole_values():
        pass
    assert torch.distributed.tensor.distribute_tensor is distribute_tensor


def test_what_a_model_came_with_stands_in_for_the_rules() -> None:
    plan = ShardingPlan(strategy="fsdp_tp", mesh={"fsdp": 2, "tensor": 4})
    facts = [
        ParameterFacts(name="a", shape=(48, 16), role="row"),
        ParameterFacts(name="b", shape=(48, 16), role="row"),
    ]
    given: dict[str, Any] = {"a": (("tensor",), ())}
    found = assign(plan, facts, given).parameters
    assert found["a"].own == (("tensor",), ("fsdp",))
    assert found["b"].own == (("fsdp",), ())
    with pytest.raises(ShardingError, match="along the axis 'tp' of its DeviceMesh"):
        assign(plan, facts, {"a": (("tp",), ())})
