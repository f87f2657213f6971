"""Every optimizer of torch.optim, schedulers, averaging and clipping, against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.runtime.modes import EagerMode, mode_set_to

Make = Callable[[Any, str], torch.optim.Optimizer]
#: Options by class; each runs element by element and as foreach, and fused where torch allows it.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "Adadelta": [{"weight_decay": 0.1, "maximize": True}],
    "Adafactor": [{}],
    "Adagrad": [{"weight_decay": 0.1, "lr_decay": 0.1}],
    "Adam": [{"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}],
    "AdamW": [{"amsgrad": True}, {"maximize": True}],
    "Adamax": [{"weight_decay": 0.1}],
    "ASGD": [{"weight_decay": 0.1, "t0": 1.0}],
    "NAdam": [{"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RAdam": [{"weight_decay": 0.1}],
    "RMSprop": [{"weight_decay": 0.1, "centered": True, "momentum": 0.9}],
    "Rprop": [{"maximize": True}],
    "SGD": [{"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {"maximize": True}],
}
FUSED = {"Adagrad", "Adam", "AdamW", "SGD"}
CASES = [
    (name, {"lr": 0.05, **options, **how})
    for name, all_options in OPTIONS.items()
    for options in all_options
    for how in (
        {"foreach": False},
        {"foreach": True},
        *([{"fused": True}] if name in FUSED else []),
    )
]


def test_no_optimizer_is_left_out() -> None:
    classes = {
        n for n, c in vars(torch.optim).items()
        if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)
    }  # fmt: skip
    # Muon and LBFGS have tests of their own; gradients of SparseAdam are sparse, which are not.
    assert classes == {*OPTIONS, "Optimizer", "Muon", "LBFGS", "SparseAdam"}


def _net(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).to(device)


def _trained(device: str, make: Make, steps: int = 2) -> list[torch.Tensor]:
    model = _net(device)
    optimizer = make(model.parameters(), device)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)).to(device)

    def loss() -> Any:
        optimizer.zero_grad()
        value = (model(x) - 1).pow(2).mean()
        value.backward()
        return value

    for _ in range(steps):
        optimizer.step(loss)
    state = [
        v for s in optimizer.state_dict()["state"].values() for k, v in sorted(s.items())
        if isinstance(v, torch.Tensor) and v.dim()
    ]  # fmt: skip
    return [*(p.detach() for p in model.parameters()), *state]


def _same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for mine, wanted in zip(ours, theirs, strict=True):
        assert mine.device.type == "tpu"
        torch.testing.assert_close(mine.cpu(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_optimizers_in_every_implementation(name: str, options: dict[str, Any]) -> None:
    def make(parameters: Any, device: str) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = getattr(torch.optim, name)(parameters, **options)
        return made

    wanted = _trained("cpu", make)
    # One mode each: element by element there are many small programs, deferred there are few.
    modes = [EagerMode.DEFER_NEVER if options.get("foreach") is False else EagerMode.DEFER_AND_FUSE]
    for mode in modes:
        with mode_set_to(mode):
            _same(_trained("tpu", make), wanted)


@pytest.mark.parametrize("name", ["Adam", "RAdam"])
def test_capturable_optimizers_keep_their_counters_on_the_device(
    mode: EagerMode, name: str
) -> None:
    def make(parameters: Any, device: str) -> torch.optim.Optimizer:
        lr = torch.tensor(0.05, device=device) if device == "tpu" else 0.05
        made: torch.optim.Optimizer = getattr(torch.optim, name)(
            parameters, lr=lr, capturable=device == "tpu"
        )
        return made

    wanted = _trained("cpu", make)
    _same(_trained("tpu", make), wanted)


def test_closures_and_matrices(mode: EagerMode) -> None:
    def lbfgs(parameters: Any, device: str) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=4)

    model = _trained("cpu", lbfgs, 2)[:4]
    _same(_trained("tpu", lbfgs, 2)[:4], model)
    made = {}
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(4, 6).to(device))
        optimizer = torch.optim.Muon([weight])
        for _ in range(2):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        made[device] = weight.detach().cpu()
    torch.testing.assert_close(made["tpu"], made["cpu"], rtol=2e-2, atol=2e-3)  # bf16 inside


def test_sparse_gradients_are_a_clear_error() -> None:
    layer = nn.Embedding(5, 3, sparse=True).to("tpu")
    with pytest.raises((NotImplementedError, RuntimeError), match=r"[Ss]parse"):
        layer(torch.tensor([1, 2], device="tpu")).sum().backward()


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2),
    "chained": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.CosineAnnealingLR(o, 4)], [2]
    ),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=6),
    "swa": lambda o: swa_utils.SWALR(o, 0.05, anneal_epochs=2),
}


@pytest.mark.parametrize("on_device", [False, True], ids=["float", "tensor"])
def test_schedulers_of_rates_as_numbers_and_as_device_tensors(on_device: bool) -> None:
    for make in SCHEDULERS.values():
        rates: dict[str, list[float]] = {}
        for device in ("cpu", "tpu"):
            lr = torch.tensor(0.1, device=device) if on_device else 0.1
            parameter = nn.Parameter(torch.ones(3, device=device))
            optimizer = torch.optim.SGD([parameter], lr=lr, momentum=0.9)
            scheduler = make(optimizer)
            rates[device] = []
            for _ in range(4):
                parameter.sum().backward()
                optimizer.step()
                scheduler.step()
                rates[device].append(float(optimizer.param_groups[0]["lr"]))
        assert rates["tpu"] == pytest.approx(rates["cpu"], rel=1e-5)


def test_averaged_models(mode: EagerMode) -> None:
    made = {}
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mean = swa_utils.AveragedModel(model)
        moving = swa_utils.AveragedModel(
            model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
        )
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)).to(device)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()
            mean.update_parameters(model)
            moving.update_parameters(model)
        swa_utils.update_bn([x, x], mean)
        made[device] = [v.cpu() for m in (mean, moving) for v in m.state_dict().values()]
    for ours, theirs in zip(made["tpu"], made["cpu"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", [2.0, float("inf")])
@pytest.mark.parametrize("foreach", [True, False])
def test_clipping(mode: EagerMode, norm: float, foreach: bool) -> None:
    made = {}
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.zeros(3, 4, device=device)) for _ in range(3)]
        for p in parameters:
            p.grad = torch.randn(3, 4).to(device)
        total = nn.utils.clip_grad_norm_(parameters, 1.0, norm, foreach=foreach)
        nn.utils.clip_grad_value_(parameters, 0.1, foreach=foreach)
        made[device] = [total.cpu(), *(p.grad.cpu() for p in parameters if p.grad is not None)]
    for ours, theirs in zip(made["tpu"], made["cpu"], strict=True):
        torch.testing.assert_close(ours, theirs)
