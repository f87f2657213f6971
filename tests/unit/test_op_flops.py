"""FLOP formulas op by op: pairs counted one by one, shapes that torch itself makes, unknowns."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch.utils.flop_counter import flop_registry

from tests.aten_calls import recorded
from tpu_perf.analysis.op_flops import (
    CAUSAL,
    FULL,
    Call,
    TensorArgument,
    flops_of_call,
    flops_of_op_name,
    parse_call,
)
from tpu_perf.analysis.op_flops.attention import visible_pairs
from tpu_perf.analysis.op_flops.call import CallFormatError
from tpu_perf.analysis.op_flops.formulas import FORMULAS, Attention


def tensor(*shape: int) -> TensorArgument:
    return TensorArgument("float32", shape)


def model(op: str, convention: Attention = CAUSAL, **arguments: Any) -> float | None:
    return flops_of_call(Call(op=op, arguments=arguments), convention).model


def pairs_one_by_one(
    queries: int, keys: int, causal: bool, bottom_right: bool, left: int | None, right: int | None
) -> float:
    """Pairs in sight, walked; a pair on the diagonal of a causal mask counts half."""
    count = 0.0
    for query, key in itertools.product(range(queries), range(keys)):
        own = query + (keys - queries if bottom_right else 0)
        if causal and key > own:
            continue
        if (left is not None and key < own - left) or (right is not None and key > own + right):
            continue
        count += 0.5 if causal and key == own else 1.0
    return count


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bottom_right", [False, True])
@pytest.mark.parametrize(("left", "right"), [(None, None), (3, None), (0, 0), (2, 1), (None, 2)])
def test_pairs_in_sight(
    causal: bool, bottom_right: bool, left: int | None, right: int | None
) -> None:
    for queries, keys in ((8, 8), (5, 9), (9, 5), (1, 7), (7, 1)):
        found = visible_pairs(
            queries, keys, causal=causal, bottom_right=bottom_right, window=(left, right)
        )
        assert found == pairs_one_by_one(queries, keys, causal, bottom_right, left, right)


def test_conventions_of_causal_attention() -> None:
    assert visible_pairs(64, 64, causal=True) == 64**2 / 2
    assert visible_pairs(64, 64, causal=True, attention="full") == 64**2
    # A sliding window of 16 keys, the query's own among them, counts its width in full.
    assert visible_pairs(64, 64, causal=True, window=(15, 0), attention="full") == 64 * 16


FLASH: dict[str, Any] = {
    "query": tensor(2, 64, 8, 16),
    "key": tensor(2, 64, 2, 16),
    "value": tensor(2, 64, 2, 16),
}


def test_sliding_windows_of_flash_kernels() -> None:
    """2 sequences, 8 heads of queries over 2 of keys, d 16: 2 (16 + 16) FLOPs a pair and head."""
    window: dict[str, Any] = {"is_causal": True, "window_size_left": 15, "window_size_right": 0}
    seen = pairs_one_by_one(64, 64, True, True, 15, 0)
    each = 2 * 8 * 2 * 32
    assert model("aten::_flash_attention_forward", **FLASH, **window) == each * seen
    assert model("aten::_flash_attention_forward", FULL, **FLASH, **window) == each * 64 * 16
    backward = flops_of_call(
        Call(op="aten::_flash_attention_backward", arguments={**FLASH, **window})
    )
    assert backward.model == 2 * each * seen
    assert backward.executed == (2 + 1 / 2) * each * seen  # the scores once more


def test_masks_of_efficient_kernels() -> None:
    for kind, causal, bottom_right in ((0, False, False), (1, True, False), (2, True, True)):
        found = model("aten::_efficient_attention_forward", **FLASH | {"key": tensor(2, 96, 2, 16)},
                      custom_mask_type=kind, window_size=None)  # fmt: skip
        seen = pairs_one_by_one(64, 96, causal, bottom_right, None, None)
        assert found == 2 * 8 * 2 * 32 * seen
    seen = pairs_one_by_one(64, 64, True, False, 9, None)
    found = model("aten::_efficient_attention_forward", **FLASH, custom_mask_type=1, window_size=10)
    assert found == 2 * 8 * 2 * 32 * seen


def test_packed_sequences_are_assumed_equally_long() -> None:
    """100 tokens of sequences of at most 25: four of them."""
    packed = {"query": tensor(100, 4, 8), "key": tensor(100, 4, 8), "value": tensor(100, 4, 8),
              "cum_seq_q": tensor(5), "is_causal": False}  # fmt: skip
    call = Call(op="aten::_flash_attention_forward", arguments={**packed, "max_q": 25, "max_k": 25})
    found = flops_of_call(call)
    assert found.model == 4 * 25**2 * 4 * 2 * 16
    assert "equally long" in str(found.note)
    assert flops_of_call(Call(op=call.op, arguments=packed)).model is None


def test_a_mask_is_counted_in_full_and_said() -> None:
    arguments: dict[str, Any] = {"query": tensor(2, 4, 8, 16), "key": tensor(2, 4, 8, 16),
                 "value": tensor(2, 4, 8, 16), "attn_mask": tensor(8, 8)}  # fmt: skip
    found = flops_of_call(Call(op="aten::scaled_dot_product_attention", arguments=arguments))
    assert found.model == 2 * 4 * 64 * 2 * 32
    assert "mask" in str(found.note)


@pytest.mark.parametrize(
    ("left", "right", "macs"),
    [
        ((5,), (5,), 5),
        ((3, 5), (5,), 15),
        ((5,), (5, 4), 20),
        ((3, 5), (5, 4), 60),
        ((7, 1, 3, 5), (2, 5, 4), 7 * 2 * 60),
        ((2, 3, 0), (2, 0, 4), 0),
    ],
)
def test_products_of_every_rank(left: tuple[int, ...], right: tuple[int, ...], macs: int) -> None:
    assert model("aten::matmul", self=tensor(*left), other=tensor(*right)) == 2 * macs
    made = sum(filter(None, (flops_of_call(call).model for call in recorded(
        lambda: torch.randn(left) @ torch.randn(right)))))  # fmt: skip
    assert made == 2 * macs  # however torch takes it apart


@pytest.mark.parametrize(
    ("equation", "shapes", "macs"),
    [
        ("ij,jk->ik", ((2, 3), (3, 4)), 24),
        ("bhid,bhjd->bhij", ((2, 3, 4, 5), (2, 3, 6, 5)), 2 * 3 * 4 * 6 * 5),
        ("ij,kl", ((2, 3), (4, 5)), 0),  # an outer product: nothing is summed
        ("ij,ij->ij", ((2, 3), (2, 3)), 0),
        ("ij,ij", ((2, 3), (2, 3)), 6),
        ("ijx,jk->ik", ((2, 3, 9), (3, 4)), 24),  # x is summed first, which is no product
        ("ii->i", ((3, 3),), 0),
    ],
)
def test_einsum(equation: str, shapes: tuple[tuple[int, ...], ...], macs: int) -> None:
    tensors = [tensor(*shape) for shape in shapes]
    assert model("aten::einsum", equation=equation, tensors=tensors) == 2 * macs
    calls = recorded(lambda: torch.einsum(equation, *(torch.randn(shape) for shape in shapes)))
    taken_apart = sum(filter(None, (flops_of_call(call).model for call in calls)))
    if macs:  # torch writes elementwise einsums as batches of 1 x 1 products
        assert taken_apart == 2 * macs


def test_a_chain_takes_the_cheapest_order() -> None:
    sides = [10, 100, 5, 50, 2]
    matrices = [tensor(a, b) for a, b in itertools.pairwise(sides)]

    def cheapest(dims: tuple[int, ...]) -> int:
        if len(dims) == 2:
            return 0
        return min(
            dims[at - 1] * dims[at] * dims[at + 1] + cheapest(dims[:at] + dims[at + 1 :])
            for at in range(1, len(dims) - 1)
        )

    assert model("aten::linalg_multi_dot", tensors=matrices) == 2 * cheapest(tuple(sides))


def test_experts_count_only_what_is_routed_to_them() -> None:
    """12 routed rows, 4 experts of 16 x 32; the gradients of rows and of weights likewise."""
    rows, experts = tensor(12, 16), tensor(4, 16, 32)
    each = 2 * 12 * 16 * 32
    assert model("aten::_grouped_mm", self=rows, mat2=experts, offs=tensor(4)) == each
    gradient = tensor(12, 32)
    assert model("aten::_grouped_mm", self=gradient, mat2=tensor(4, 32, 16)) == each
    assert model("aten::_grouped_mm", self=tensor(16, 12), mat2=gradient) == each
    assert model("aten::_grouped_mm", self=tensor(4, 3, 16), mat2=experts) == 4 * 2 * 3 * 16 * 32


@pytest.mark.parametrize("padding", [0, 1, "same", "valid"])
@pytest.mark.parametrize(("stride", "dilation", "groups"), [(1, 1, 1), (1, 2, 2), (2, 1, 4)])
def test_convolutions_by_the_size_that_torch_makes(
    padding: Any, stride: int, dilation: int, groups: int
) -> None:
    """Every output point meets the kernel of its group; the row need not say its result."""
    if padding == "same" and stride > 1:
        return
    x, weight = torch.randn(2, 4, 9, 10), torch.randn(8, 4 // groups, 3, 5)
    out = functional.conv2d(x, weight, None, stride, padding, dilation, groups)
    by_hand = 2 * out.numel() * (4 // groups) * 3 * 5
    arguments = {"input": tensor(*x.shape), "weight": tensor(*weight.shape), "padding": padding,
                 "stride": stride, "dilation": [dilation], "groups": groups}  # fmt: skip
    assert model("aten::conv2d", **arguments) == by_hand


def test_gradients_of_convolutions_that_are_not_needed() -> None:
    shapes: dict[str, Any] = {"grad_output": tensor(2, 8, 7, 7), "input": tensor(2, 4, 9, 9),
              "weight": tensor(8, 4, 3, 3)}  # fmt: skip
    each = 2 * (2 * 8 * 49) * 4 * 9
    for mask, times in (([True, True, True], 2), ([False, True, True], 1), ([False] * 3, 0)):
        found = model("aten::convolution_backward", **shapes, output_mask=mask, transposed=False)
        assert found == times * each


@pytest.mark.parametrize(
    "op",
    ["embedding", "embedding_dense_backward", "_embedding_bag", "index_select", "add", "mul_",
     "native_layer_norm", "_softmax", "gelu", "sum", "t", "view", "linalg_vector_norm", "copy_",
     "_foreach_add_", "_fused_adamw_", "_thnn_fused_lstm_cell", "upsample_linear1d"],
)  # fmt: skip
def test_ops_without_products_count_nothing(op: str) -> None:
    assert flops_of_op_name(f"aten::{op}.default").model == 0


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("aten::linalg_svd", "no formula"),
        ("aten::some_new_attention", "no formula"),
        ("mylib::fused_thing", "not an op of torch's own"),
        ("aten::mm.default", "shapes were not recorded"),
        ("higher_order::flex_attention", "not an op of torch's own"),
    ],
)
def test_what_is_not_known_is_not_zero(op: str, said: str) -> None:
    found = flops_of_op_name(op)
    assert (found.model, found.executed) == (None, None)
    assert said in str(found.reason)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"self": tensor(2, 3)},
        {"self": tensor(2, 3), "mat2": tensor(4, 5)},
        {"self": 3, "mat2": tensor(3, 5)},
        {"self": tensor(), "mat2": tensor(3, 5)},
    ],
)
def test_rows_that_make_no_sense_are_unknown(arguments: dict[str, Any]) -> None:
    found = flops_of_call(Call(op="aten::mm", arguments=arguments))
    assert found.model is None
    assert "aten::mm" in str(found.reason)


def test_calls_table_rows_are_read_or_refused() -> None:
    names, shape = '["self", "mat2"]', '{"dtype": "bfloat16", "shape": [2, 3]}'
    call = parse_call("aten::mm.out", names, f"[{shape}, null]", f"[{shape}]")
    assert (call.name, call.shape("self"), call.result_shape()) == ("aten::mm", (2, 3), (2, 3))
    assert call.get("mat2", 7) == 7
    for broken in ("", "{", "3", None):
        with pytest.raises(CallFormatError):
            parse_call("aten::mm", names, broken, "[]")  # type: ignore[arg-type]
    assert json.loads(names)[0] == "self"


def test_in_place_and_overloaded_names_have_their_formula() -> None:
    both: dict[str, Any] = {"mat1": tensor(2, 3), "mat2": tensor(3, 4)}
    for op in ("aten::addmm.default", "aten::addmm_", "aten::addmm.out"):
        assert model(op, **both) == 48


def test_every_op_that_torch_counts_has_a_formula() -> None:
    def name(packet: Callable[..., Any]) -> str:
        return f"aten::{packet.__name__}"

    missing = {name(packet) for packet in flop_registry} - set(FORMULAS)
    assert {one for one in missing if "flex_attention" not in one} == set()
    assert all(flops_of_op_name(one).model is None for one in missing)  # and those are not zero
