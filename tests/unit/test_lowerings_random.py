"""Draws: reproducible, different per offset, and distributed as their names say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.against_torch import metas_of, run, sample

COUNT = 20000
BIG = torch.zeros(COUNT)


def _draw(name: str, *args: Any, out: Any = BIG, seed: int = 5, **kwargs: Any) -> Any:
    results = run(name, metas_of(out if isinstance(out, list) else [out]), args, kwargs, seed)
    return np.asarray(results[0]).astype(np.float64)


#: op, arguments, mean, deviation
DISTRIBUTIONS: list[tuple[Any, ...]] = [
    ("uniform", (BIG,), 0.5, 12**-0.5), ("uniform", (BIG, -1.0, 3.0), 1.0, 4 / 12**0.5),
    ("normal_functional", (BIG, 2.0, 3.0), 2.0, 3.0), ("rand", ([COUNT],), 0.5, 12**-0.5),
    ("randn", ([COUNT],), 0.0, 1.0), ("bernoulli.p", (BIG, 0.3), 0.3, 0.21**0.5),
    ("bernoulli", (BIG + 0.8,), 0.8, 0.4), ("exponential", (BIG, 2.0), 0.5, 0.5),
    ("randint", (10, [COUNT]), 4.5, 8.25**0.5), ("randint.low", (-5, 5, [COUNT]), -0.5, 8.25**0.5),
    ("random.from", (BIG, 0, 10), 4.5, 8.25**0.5), ("geometric", (BIG, 0.5), 2.0, 2**0.5),
    ("normal.Tensor_Tensor", (BIG + 1, BIG + 2), 1.0, 2.0), ("poisson", (BIG + 4,), 4.0, 2.0),
]  # fmt: skip


@pytest.mark.parametrize("case", DISTRIBUTIONS, ids=lambda c: c[0])
def test_mean_and_deviation(case: tuple[Any, ...]) -> None:
    name, args, mean, deviation = case
    values = _draw(name, *args)
    assert values.shape == (COUNT,)
    assert abs(values.mean() - mean) < 5 * deviation / COUNT**0.5
    assert abs(values.std() - deviation) < 0.05 * deviation


def test_a_draw_is_a_function_of_its_seed() -> None:
    first, again, other = (_draw("uniform", BIG, seed=s) for s in (1, 1, 2))
    assert (first == again).all()
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.05


def test_uniform_halves_stay_below_the_end() -> None:
    half = BIG.to(torch.bfloat16)
    assert _draw("uniform", half, out=half).max() < 1


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_dropout(p: float) -> None:
    ones = BIG + 1
    values, mask = (
        np.asarray(r)
        for r in run("native_dropout", metas_of([ones, ones.bool()]), (ones, p, True), {}, 7)
    )
    assert abs(mask.mean() - (1 - p)) < 0.02
    np.testing.assert_allclose(values, mask / (1 - p) if p < 1 else 0 * mask)


def test_permutation() -> None:
    out = torch.zeros(100, dtype=torch.int64)
    assert sorted(_draw("randperm", 100, out=out)) == list(range(100))


def test_multinomial() -> None:
    odds = torch.tensor([0.0, 1.0, 3.0])
    drawn = _draw("multinomial", odds, COUNT, True, out=torch.zeros(COUNT, dtype=torch.int64))
    assert abs(np.bincount(drawn.astype(int), minlength=3) / COUNT - [0, 0.25, 0.75]).max() < 0.02
    rows = _draw("multinomial", sample(50, 4, low=0.1), 4, out=torch.zeros(50, 4).long())
    assert (np.sort(rows, 1) == np.arange(4)).all()
