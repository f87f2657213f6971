"""Calls that models make of the device as of CUDA, and that torch on the CPU has in other form."""

from __future__ import annotations

import torch

import tpu_perf.runtime.device  # noqa: F401 - loads the device


def test_histc_counts_whole_numbers() -> None:
    """Mixtures of experts count with it; the CPU's takes floating-point numbers only."""
    experts = torch.randint(0, 7, (50,))
    counts = torch.histc(experts.int().to("tpu"), bins=7, min=0, max=6)
    assert counts.dtype == torch.int32
    assert counts.tolist() == torch.bincount(experts, minlength=7).tolist()


def test_index_tensors_may_lie_on_the_host() -> None:
    values = torch.randn(5, 3)
    rows = torch.tensor([0, 2, 2])
    on_device = values.to("tpu").requires_grad_()
    on_device[rows].sum().backward()
    assert on_device.grad is not None
    assert on_device.grad.cpu()[:, 0].tolist() == [1.0, 0.0, 2.0, 0.0, 0.0]
    written = torch.index_put(on_device.detach(), (rows,), torch.tensor(4.0, device="tpu"))
    assert torch.equal(written.cpu(), torch.index_put(values, (rows,), torch.tensor(4.0)))


def test_a_number_in_a_tensor_of_the_host_fills_a_mask() -> None:
    mask = torch.tensor([True, False])
    filled = torch.zeros(2, device="tpu").masked_fill(mask.to("tpu"), torch.tensor(-3.0))
    assert filled.tolist() == [-3.0, 0.0]


def test_grouped_products_take_every_dtype_and_empty_groups() -> None:
    """Eagerly and compiled, with gradients, against one product a group."""
    ends = [2, 2, 7]
    rows, matrices = torch.randn(7, 8), torch.randn(3, 8, 4)
    starts = [0, *ends[:-1]]
    parts = [rows[a:b] @ m for a, b, m in zip(starts, ends, matrices, strict=True)]
    offsets = torch.tensor(ends, dtype=torch.int32, device="tpu")

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.nn.functional.grouped_mm(a, b, offs=offsets)
        return made

    for call in (product, torch.compile(product, backend="tpu")):
        a = rows.to("tpu").requires_grad_()
        b = matrices.to("tpu").requires_grad_()
        made = call(a, b)
        torch.testing.assert_close(made.detach().cpu(), torch.cat(parts), rtol=1e-5, atol=1e-5)
        made.sum().backward()
        assert b.grad is not None
        want = torch.stack([rows[x:y].sum(0) for x, y in zip(starts, ends, strict=True)])
        got = b.grad.cpu()
        torch.testing.assert_close(got, want[:, :, None].expand(3, 8, 4), rtol=1e-5, atol=1e-5)


def test_query_heads_share_one_key_under_a_boolean_mask() -> None:
    """Falcon's attention: heads broadcast, without enable_gqa."""
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 1, 5, 8), torch.randn(2, 1, 5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 1, 5, 5).clone()
    mask[1, :, :, 3:] = False
    attention = torch.nn.functional.scaled_dot_product_attention
    want = attention(query, key, value, attn_mask=mask)
    for call in (attention, torch.compile(attention, backend="tpu")):
        got = call(query.to("tpu"), key.to("tpu"), value.to("tpu"), attn_mask=mask.to("tpu"))
        torch.testing.assert_close(got.cpu(), want)


def test_features_scattered_into_text_get_their_gradients() -> None:
    """Multimodal models place images so; compiled, the gradient is an op of its own."""
    text, features = torch.randn(3, 4), torch.randn(3, 4)
    mask = torch.tensor([[True], [False], [True]])
    weights = torch.arange(12.0).reshape(3, 4)

    def gradients(device: str, compiled: bool) -> list[torch.Tensor]:
        leaves = [t.detach().to(device).requires_grad_() for t in (text, features)]
        scatter = torch.Tensor.masked_scatter
        if compiled:
            scatter = torch.compile(scatter, backend="tpu")
        (scatter(leaves[0], mask.to(device), leaves[1]) * weights.to(device)).sum().backward()
        return [leaf.grad.cpu() for leaf in leaves if leaf.grad is not None]

    want = gradients("cpu", compiled=False)
    assert want[1][2].abs().sum() == 0, "the last feature is not needed"
    for compiled in (False, True):
        assert all(map(torch.equal, gradients("tpu", compiled), want))
