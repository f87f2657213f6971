"""Matrix products: an (n x k) by (k x m) product is n k m multiply-adds, two FLOPs each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tpu_perf.analysis.op_flops.call import Call, CallFormatError, TensorArgument
from tpu_perf.analysis.op_flops.formulas import Attention, Counted, Unknown, formula

Shape = tuple[int, ...]


def product(left: Shape, right: Shape) -> float:
    """FLOPs of left @ right by torch.matmul's rules: vectors, matrices, broadcast batches."""
    if not left or not right:
        raise CallFormatError(f"no matrix product of shapes {left} and {right}")
    left, right = left if len(left) > 1 else (1, *left), right if len(right) > 1 else (*right, 1)
    *batch, rows, inner = left
    *other, same, columns = right
    if inner != same:
        raise CallFormatError(f"shapes {left} and {right} do not multiply")
    return 2.0 * math.prod(broadcast(batch, other)) * rows * inner * columns


def broadcast(one: Sequence[int], two: Sequence[int]) -> list[int]:
    """The shape to which both broadcast. Raises CallFormatError if they do not."""
    longer, shorter = (one, two) if len(one) >= len(two) else (two, one)
    padded = [1] * (len(longer) - len(shorter)) + list(shorter)
    out = []
    for a, b in zip(longer, padded, strict=True):
        if a != b and 1 not in (a, b):
            raise CallFormatError(f"shapes {one} and {two} do not broadcast")
        out.append(b if a == 1 else a)
    return out


@formula(
    "mm",
    "bmm",
    "matmul",
    "linalg_matmul",
    "mv",
    "dot",
    "vdot",
    "_int_mm",
    "_scaled_mm",
    "_scaled_mm_v2",
)
def of_two(call: Call, attention: Attention) -> float:
    return product(call.shape("self", "input"), call.shape("mat2", "other", "vec", "tensor"))


@formula("addmm", "_addmm_activation")
def addmm(call: Call, attention: Attention) -> float:
    return product(call.shape("mat1"), call.shape("mat2"))


@formula("baddbmm", "addbmm")
def batched_with_sum(call: Call, attention: Attention) -> float:
    return product(call.shape("batch1"), call.shape("batch2"))


@formula("addmv")
def addmv(call: Call, attention: Attention) -> float:
    return product(call.shape("mat"), call.shape("vec"))


@formula("inner")
def inner(call: Call, attention: Attention) -> float:
    left, right = call.shape("self"), call.shape("other")
    if not left or not right:
        return 0.0  # by a scalar: elementwise
    return 2.0 * math.prod(left) * math.prod(right[:-1])


@formula("linalg_vecdot")
def vecdot(call: Call, attention: Attention) -> float:
    return 2.0 * math.prod(broadcast(call.shape("x"), call.shape("y")))


@formula("linear", "mkldnn_linear", "_weight_int8pack_mm")
def linear(call: Call, attention: Attention) -> float:
    """input (..., k), weight (m, k)."""
    weight = call.shape("weight", "mat2")
    return 2.0 * math.prod(call.shape("input", "self")) * math.prod(weight[:-1])


@formula("linear_backward")
def linear_backward(call: Call, attention: Attention) -> float:
    """One product of the forward's size for each of the two gradients that are asked for."""
    each = 2.0 * math.prod(call.shape("self")) * call.shape("weight")[0]
    return each * sum(bool(wanted) for wanted in call.given("output_mask")[:2])


@formula("matmul_backward")
def matmul_backward(call: Call, attention: Attention) -> float:
    each = product(call.shape("self"), call.shape("other"))
    return each * sum(bool(wanted) for wanted in call.given("mask"))


@formula("_dyn_quant_matmul_4bit")
def four_bit(call: Call, attention: Attention) -> float:
    rows = math.prod(call.shape("inp")[:-1])
    return 2.0 * rows * float(call.given("in_features")) * float(call.given("out_features"))


@formula("_weight_int4pack_mm")
def packed_four_bit(call: Call, attention: Attention) -> float:
    made = call.result_shape()
    if made is None:
        raise Unknown("its packed weight does not say how many columns it has")
    return 2.0 * math.prod(call.shape("self")) * made[-1]


@formula("_trilinear")
def trilinear(call: Call, attention: Attention) -> float:
    """sum over `sumdim` of i1 * i2 * i3, each first widened by its expand dimensions: two
    products and a sum for each point of the common space, counted as two contractions."""
    shapes = []
    for tensor, expand in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        shape = list(call.shape(tensor))
        for dimension in sorted(call.get(expand, [])):
            shape.insert(dimension, 1)
        shapes.append(shape)
    return 2.0 * math.prod(broadcast(broadcast(shapes[0], shapes[1]), shapes[2]))


@formula("bilinear")
def bilinear(call: Call, attention: Attention) -> float:
    """As _trilinear: y_o = sum over i, j of a_i W_oij b_j."""
    rows = math.prod(call.shape("input1")[:-1])
    return 2.0 * rows * math.prod(call.shape("weight"))


@formula("tensordot")
def tensordot(call: Call, attention: Attention) -> float:
    right = call.shape("other")
    contracted = {dimension % len(right) for dimension in call.given("dims_other")}
    free = math.prod(n for index, n in enumerate(right) if index not in contracted)
    return 2.0 * math.prod(call.shape("self")) * free


@formula("einsum")
def einsum(call: Call, attention: Attention) -> float:
    """Two operands: 2 x the product of all indices that the contraction runs over; indices of one
    operand that the result lacks are summed first. More operands depend on the path."""
    equation = str(call.given("equation")).replace(" ", "")
    tensors = call.given("tensors")
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    if "." in equation or len(terms) != len(tensors):
        raise Unknown("an equation with an ellipsis is not read")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, tensors, strict=True):
        if not isinstance(tensor, TensorArgument) or len(term) != len(tensor.shape):
            raise CallFormatError(f"einsum {equation} does not fit its operands")
        for letter, size in zip(term, tensor.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    if len(terms) == 1:
        return 0.0
    if len(terms) > 2:
        raise Unknown("the cost of an einsum of three operands or more depends on its path")
    if not arrow:
        output = "".join(c for c in sizes if inputs.count(c) == 1)
    shared = set(terms[0]) & set(terms[1])
    if not shared - set(output):
        return 0.0  # nothing is summed over both: elementwise
    letters = shared | (set(output) & set(sizes))
    return 2.0 * math.prod(sizes[letter] for letter in letters)


@formula("chain_matmul", "linalg_multi_dot")
def chain(call: Call, attention: Attention) -> float:
    """The cheapest order of the products, which is the one torch chooses."""
    tensors = call.given("matrices", "tensors")
    shapes = [tensor.shape for tensor in tensors]
    if len(shapes) == 1:
        return 0.0
    shapes[0] = shapes[0] if len(shapes[0]) > 1 else (1, *shapes[0])
    shapes[-1] = shapes[-1] if len(shapes[-1]) > 1 else (*shapes[-1], 1)
    sides = [shape[0] for shape in shapes] + [shapes[-1][1]]
    best: dict[tuple[int, int], float] = {(i, i): 0.0 for i in range(len(shapes))}
    for length in range(1, len(shapes)):
        for i in range(len(shapes) - length):
            j = i + length
            best[i, j] = min(
                best[i, k] + best[k + 1, j] + 2.0 * sides[i] * sides[k + 1] * sides[j + 1]
                for k in range(i, j)
            )
    return best[0, len(shapes) - 1]


_ROUTED = (
    "grouped products count every row of the operand: rows beyond the last offset, if an "
    "implementation pads, are in the count"
)


@formula("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2")
def grouped(call: Call, attention: Attention) -> Counted:
    """Products of groups, as in a mixture of experts: each routed row meets one expert's matrix,
    so only active experts count. Ranks 3 and 3 are a plain batch of products; 2 and 3 (tokens by
    experts) and 3 and 2 need each row once; 2 and 2 (the experts' weight gradients) contract over
    the rows, each once."""
    left, right = call.shape("self"), call.shape("mat2")
    if len(left) == 3 and len(right) == 3:
        return Counted(model=product(left, right))
    if len(left) == 2 and len(right) == 3:
        return Counted(model=2.0 * left[0] * left[1] * right[2], note=_ROUTED)
    if len(left) == 3 and len(right) == 2:
        return Counted(model=2.0 * left[1] * left[2] * right[1], note=_ROUTED)
    if len(left) == 2 and len(right) == 2:
        return Counted(model=2.0 * left[0] * left[1] * right[1], note=_ROUTED)
    raise CallFormatError(f"no grouped product of shapes {left} and {right}")
