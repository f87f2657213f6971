"""Random numbers of device "tpu": generators, seeds, states; the same draws in every mode."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import scipy.stats
import torch
from torch.utils.checkpoint import checkpoint

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.runtime.modes import EagerMode, mode_set_to

tpu = torch.tpu  # type: ignore[attr-defined]


def _generator(seed: int = 5) -> torch.Generator:
    return torch.Generator(device="tpu").manual_seed(seed)


def _draw_everything(g: torch.Generator) -> list[torch.Tensor]:
    ones = torch.ones(6, device="tpu")
    where: Any = {"device": "tpu", "generator": g}
    return [
        torch.rand(3, **where),
        torch.randn(2, 3, **where),
        torch.randint(0, 100, (5,), **where),
        torch.randperm(7, **where),
        torch.normal(0.0, 2.0, (3,), **where),
        torch.bernoulli(ones / 2, generator=g),
        torch.multinomial(ones, 3, generator=g),
        torch.empty(3, device="tpu").uniform_(-1, 1, generator=g),
        torch.empty(3, device="tpu").exponential_(generator=g),
        torch.randn_like(ones, generator=g),
        torch.nn.init.trunc_normal_(torch.empty(4, device="tpu"), generator=g),
    ]


def test_a_generator_repeats_its_stream_in_every_op(mode: EagerMode) -> None:
    g = _generator()
    before = tpu.get_rng_state()
    state = g.get_state()
    first = _draw_everything(g)
    copies = [copy.deepcopy(g), g.clone_state(), torch.Generator("tpu").set_state(g.get_state())]
    following = torch.rand(4, device="tpu", generator=g)
    for other in copies:
        assert torch.equal(torch.rand(4, device="tpu", generator=other), following)
    assert all(map(torch.equal, first, _draw_everything(g.manual_seed(5))))
    assert all(map(torch.equal, first, _draw_everything(g.set_state(state))))
    assert all(map(torch.equal, first, _draw_everything(_generator())))
    assert g.initial_seed() == 5
    assert g.device == torch.device("tpu", 0)
    assert isinstance(g, torch.Generator)
    assert torch.equal(tpu.get_rng_state(), before)  # the default generator did not move
    assert g.seed() != _generator().seed()


def test_the_default_generator_follows_torchs_seed_functions() -> None:
    torch.manual_seed(3)
    assert tpu.initial_seed() == tpu.default_generators[0].initial_seed() == 3
    drawn = torch.rand(3, device="tpu")
    with torch.random.fork_rng(device_type="tpu"):
        inside = torch.rand(3, device="tpu")
    with torch.random.fork_rng():
        torch.manual_seed(8)
        torch.rand(3, device="tpu")
    assert torch.equal(torch.rand(3, device="tpu"), inside)
    by_hand = torch.rand(3, device="tpu", generator=tpu.default_generators[0].manual_seed(3))
    assert torch.equal(by_hand, drawn)
    states = tpu.get_rng_state_all()
    wanted = torch.randn(2, device="tpu")
    tpu.set_rng_state_all(states)
    assert torch.equal(torch.randn(2, device="tpu"), wanted)


def test_seeds_set_between_deferred_draws_keep_their_places() -> None:
    def draw() -> list[list[float]]:
        drawn = []
        for seed in (1, 2, 1):
            torch.manual_seed(seed)
            drawn.append(torch.rand(2, device="tpu"))
        drawn.append(torch.rand(2, device="tpu", generator=_generator(2)))
        return [d.tolist() for d in drawn]

    strict = draw()
    with mode_set_to(EagerMode.DEFER_AND_FUSE):
        assert draw() == strict
    assert strict[0] == strict[2] != strict[1] == strict[3]


def test_dropout_is_the_same_in_every_mode_and_when_recomputed() -> None:
    linear = torch.nn.Linear(8, 16)
    model = torch.nn.Sequential(linear, torch.nn.Dropout(0.4)).to("tpu")
    x = torch.randn(4, 8, device="tpu")

    def step(function: Any) -> list[torch.Tensor]:
        torch.manual_seed(7)
        model.zero_grad()
        y = function(x)
        (y**2).sum().backward()
        assert linear.weight.grad is not None
        return [y.detach().cpu(), linear.weight.grad.cpu(), torch.rand(2, device="tpu").cpu()]

    wanted = step(model)
    assert 0 < (wanted[0] == 0).sum() < 64
    with mode_set_to(EagerMode.DEFER_AND_FUSE):
        fused = step(model)
    compiled = step(torch.compile(model, backend="tpu"))
    recomputed = step(lambda v: checkpoint(model, v, use_reentrant=False))
    reentrant = step(lambda v: checkpoint(model, v.requires_grad_(), use_reentrant=True))
    for other in (fused, compiled, recomputed, reentrant):
        for found, expected in zip(other, wanted, strict=True):
            torch.testing.assert_close(found, expected)


def test_wrong_generators_and_states_are_refused() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator"):
        torch.rand(3, device="tpu", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="has 16 bytes"):
        _generator().set_state(torch.get_rng_state())
    with pytest.raises(TypeError, match="ByteTensor"):
        tpu.set_rng_state(torch.ones(2))


def test_distributions_draw_what_they_are_named_for() -> None:
    torch.manual_seed(0)
    shape = torch.tensor([0.3, 2.5], device="tpu", requires_grad=True)
    gamma = torch.distributions.Gamma(shape, torch.full((2,), 2.0, device="tpu")).rsample((20000,))
    gamma.mean(0).sum().backward()
    for i, concentration in enumerate((0.3, 2.5)):
        drawn = gamma[:, i].detach().cpu().numpy()
        law = scipy.stats.gamma(concentration, scale=0.5)
        assert scipy.stats.kstest(drawn, law.cdf).pvalue > 1e-3
    # The mean is shape / rate, and so its derivative 1 / rate.
    assert shape.grad is not None
    torch.testing.assert_close(shape.grad.cpu(), torch.full((2,), 0.5), atol=0.03, rtol=0)
    weights = torch.tensor([0.1, 1.0, 5.0])
    shares = torch.distributions.Dirichlet(weights.to("tpu")).sample((20000,)).cpu()
    torch.testing.assert_close(shares.sum(-1), torch.ones(20000))
    torch.testing.assert_close(shares.mean(0), weights / weights.sum(), atol=0.01, rtol=0)
    counts = torch.binomial(torch.full((20000,), 10.0, device="tpu"),
                            torch.full((20000,), 0.3, device="tpu")).cpu()  # fmt: skip
    assert set(counts.unique().tolist()) <= set(range(11))
    assert counts.mean().item() == pytest.approx(3.0, abs=0.06)
    assert counts.var().item() == pytest.approx(2.1, abs=0.1)
