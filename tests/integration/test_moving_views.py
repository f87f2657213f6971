"""Slices that move through a tensor: right values, and not a program for every place."""

from __future__ import annotations

import torch

from tpu_perf.runtime.modes import EagerMode
from tpu_perf.runtime.moving_views import PLACES
from tpu_perf.runtime.program_cache import CACHE


def test_batches_sliced_from_a_tensor_on_the_device(mode: EagerMode) -> None:
    torch.manual_seed(0)
    data = torch.randn(120, 7)
    weight = torch.randn(5, 7)
    on_device = data.to("tpu")
    trained = weight.to("tpu").requires_grad_()
    compiled = []
    for start in range(0, 120, 6):
        before = CACHE.misses
        batch = on_device[start : start + 6]
        loss = torch.nn.functional.linear(batch, trained).square().sum()
        (gradient,) = torch.autograd.grad(loss, trained)
        compiled.append(CACHE.misses - before)
        expected = 2 * (data[start : start + 6] @ weight.T).T @ data[start : start + 6]
        torch.testing.assert_close(gradient.cpu(), expected)
    assert sum(compiled[PLACES + 2 :]) == 0


def test_rows_stacked_in_random_order(mode: EagerMode) -> None:
    data = torch.arange(400.0).reshape(100, 4)
    on_device = data.to("tpu")
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0)).tolist()
    compiled = []
    for start in range(0, 100, 10):
        before = CACHE.misses
        rows = torch.stack([on_device[i] for i in order[start : start + 10]])
        assert torch.equal(rows.cpu(), data[order[start : start + 10]])
        compiled.append(CACHE.misses - before)
    assert sum(compiled[PLACES + 2 :]) == 0


def test_reading_single_values_takes_one_program() -> None:
    values = torch.arange(50.0).to("tpu")
    values[0].item()
    before = CACHE.misses
    assert [values[i].item() for i in range(50)] == [float(i) for i in range(50)]
    assert CACHE.misses == before


def test_a_view_that_is_written_or_that_its_own_buffer_replaces_stays_a_view(
    mode: EagerMode,
) -> None:
    expected = torch.arange(64.0)
    values = expected.to("tpu")
    for start in range(0, 60, 4):
        values[start : start + 2].add_(values[start + 2 : start + 4])
        expected[start : start + 2].add_(expected[start + 2 : start + 4])
    assert torch.equal(values.cpu(), expected)


def test_a_copy_is_of_the_value_at_the_time(mode: EagerMode) -> None:
    values = torch.zeros(64, device="tpu")
    sums = []
    for start in range(0, 64, 4):
        values += 1
        sums.append(values[start : start + 4].sum())
    assert [s.item() for s in sums] == [4.0 * (i + 1) for i in range(16)]
