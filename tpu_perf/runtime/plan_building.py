"""The slow path, once per key: torch's meta kernels give shapes and errors, the table the code."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpu_perf.runtime.argument_checks import check_overlaps, check_written
from tpu_perf.runtime.argument_layout import Layout
from tpu_perf.runtime.binding import Bound
from tpu_perf.runtime.buffers import Spec, contiguous_strides, storage_order_shape
from tpu_perf.runtime.call_description import of_call
from tpu_perf.runtime.call_plan import CallPlan, Fresh
from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.lowerings.registry import (
    Call,
    Lowering,
    Number,
    TensorMeta,
    as_array,
    draws_numbers,
)
from tpu_perf.runtime.plan_metas import (
    Form,
    NotLowered,
    forms,
    meta_arguments,
    outputs_in_place,
    run_meta,
)
from tpu_perf.runtime.signatures import TENSOR, TENSORS, Signature
from tpu_perf.runtime.views import ViewPlan, view_of, view_plan


class OutputNeedsResize(Exception):
    """Tensor arguments (their positions) that must first be given another shape and strides."""

    def __init__(self, forms: list[tuple[int, Form]]) -> None:
        super().__init__("out= tensor needs resizing")
        self.forms = forms


def build_plan(signature: Signature, bound: Bound) -> CallPlan:
    """Work out the plan of a call.

    Raises what torch itself raises for wrong arguments (from its meta kernel), and NotLowered
    where neither the table nor a decomposition covers the op.
    """
    metas = meta_arguments(signature, bound)
    before = [tuple(m.shape) for m in metas.tensors]
    result, wanted = outputs_in_place(signature, metas, run_meta(signature, metas))
    resized = [i for i, m in enumerate(wanted) if tuple(m.shape) != before[i]]
    written = _written_tensors(signature, bound)
    if written and not signature.foreach:
        check_overlaps(
            signature.functional, bound.tensors, bound.slot_of, written,
            signature.arguments[0].name == "self",
        )  # fmt: skip
        if signature.is_out:
            for i in written:
                check_written(bound.tensors[i])
    if resized:
        raise OutputNeedsResize(forms(signature, metas, wanted, resized))
    returns, fresh_metas = _return_template(result, metas.tensors)
    views = [
        view_of(t, bound.buffers[slot].spec)
        for t, slot in zip(bound.tensors, bound.slot_of, strict=True)
    ]
    mutated = tuple(dict.fromkeys(bound.slot_of[i] for i in written))
    evaluate = _evaluator(signature, bound, fresh_metas, written)
    random = draws_numbers(signature.lowering, dict(zip(
        (a.name for a in signature.arguments), bound.values, strict=True)))  # fmt: skip
    fresh = tuple(fresh_like(m) for m in fresh_metas)
    reads = _read_slots(signature, bound, views, written)
    compute = _compute(
        evaluate, views, tuple(bound.slot_of), written, mutated, fresh,
        tuple(type(n) for n in bound.numbers), random, reads, len(bound.buffers),
    )  # fmt: skip
    slots = tuple(b.spec for b in bound.buffers)
    return CallPlan(
        op=signature.display,
        key_text=f"{signature.display}({', '.join(_key_text(k) for k in bound.key)})",
        slots=slots,
        number_kinds=tuple(type(n) for n in bound.numbers),
        random=random,
        compute=compute,
        reads=reads,
        fresh=fresh,
        mutated=mutated,
        returns=returns,
        described=of_call(signature, bound),
        bytes_in=sum(slots[i].nbytes for i in reads),
        bytes_out=sum(f.spec.nbytes for f in fresh) + sum(slots[i].nbytes for i in mutated),
    )


#: In-place ops whose result does not depend on what was there before.
OVERWRITES = {
    "fill.Scalar", "fill.Tensor", "zero.default", "copy.default", "copy_.default",
    "uniform.default",
    "normal_functional.default", "normal.default", "bernoulli.p", "bernoulli.Tensor",
    "random.default", "random.from", "random.to", "exponential.default", "cauchy.default",
    "geometric.default", "log_normal.default",
}  # fmt: skip


def _read_slots(
    signature: Signature, bound: Bound, views: list[ViewPlan], written: tuple[int, ...]
) -> tuple[int, ...]:
    """Slots whose old arrays the program needs. Memory that is wholly overwritten is not read, so
    that filling a fresh tensor allocates nothing but the result."""
    overwrites = signature.functional in OVERWRITES or signature.is_out
    if signature.is_out and signature.lowering is not None and signature.lowering.mutates:
        written = written[-sum(a.is_out for a in signature.arguments) :]  # the rest is read too
    needed: dict[int, None] = {}
    for position, slot in enumerate(bound.slot_of):
        whole = position in written and overwrites and views[position].covers
        if not whole:
            needed[slot] = None
    return tuple(slot for slot in range(len(bound.buffers)) if slot in needed)


def _key_text(part: Any) -> str:
    return repr(tuple(part)) if isinstance(part, torch.Size) else repr(part)


def _written_tensors(signature: Signature, bound: Bound) -> tuple[int, ...]:
    """Indices (among tensor arguments) of those the op writes, in schema order."""
    written: list[int] = []
    position = 0
    for argument, value in zip(signature.arguments, bound.values, strict=True):
        if argument.kind == TENSOR:
            items: Sequence[Any] = [value]
        elif argument.kind == TENSORS and value is not None:
            items = value
        else:
            continue
        for item in items:
            if isinstance(item, torch.Tensor):
                if argument.written:
                    written.append(position)
                position += 1
    return tuple(written)


def _return_template(result: Any, arguments: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    fresh: list[torch.Tensor] = []
    by_id = {id(a): i for i, a in enumerate(arguments)}

    def template(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, torch.Tensor):
            if id(value) in by_id:
                return ("argument", by_id[id(value)])
            fresh.append(value)
            return ("fresh", len(fresh) - 1)
        if isinstance(value, list):
            return [template(v) for v in value]
        if isinstance(value, tuple):
            return ("tuple", [template(v) for v in value])
        if isinstance(value, (int, float)):
            return ("constant", value)
        raise NotLowered(f"an op returned a {type(value).__name__}")

    return template(result), fresh


def fresh_like(meta: torch.Tensor) -> Fresh:
    """A new output with the geometry that torch's fake of it has."""
    size, stride = tuple(meta.shape), tuple(meta.stride())
    if meta.is_contiguous():
        return Fresh(Spec.of(size, meta.dtype), size, contiguous_strides(size), True)
    shape = storage_order_shape(size, stride)
    spec = Spec.of(shape, meta.dtype)
    if spec.numel != meta.numel() and any(
        s == 0 and n > 1 for n, s in zip(size, stride, strict=True)
    ):  # elements in one place: give it a dense layout of its own
        return Fresh(Spec.of(size, meta.dtype), size, contiguous_strides(size), True)
    return Fresh(spec, size, stride, False)


def fresh_spread(meta: torch.Tensor) -> Fresh:
    """A new output whose elements along broadcast dims lie in one place, as an expanded view."""
    size, stride = tuple(meta.shape), tuple(meta.stride())
    narrow = tuple(1 if s == 0 else n for n, s in zip(size, stride, strict=True))
    spec = Spec.of(storage_order_shape(narrow, stride), meta.dtype)
    return Fresh(spec, size, stride, False)


Evaluate = Callable[[list[jax.Array], list[Number], Any, Any], list[jax.Array]]


def _evaluator(
    signature: Signature, bound: Bound, fresh: list[torch.Tensor], written: tuple[int, ...]
) -> Evaluate:
    """A function from the values of the tensor arguments to those of the outputs: the fresh ones,
    then the new values of the written arguments."""
    lowering = signature.lowering
    layout = Layout(signature, bound)
    written_metas = tuple(
        TensorMeta(tuple(bound.tensors[i].shape), bound.tensors[i].dtype) for i in written
    )
    outs = tuple(TensorMeta(tuple(m.shape), m.dtype) for m in fresh)
    if lowering is None:
        from tpu_perf.runtime.decompositions import decomposed_evaluator

        return decomposed_evaluator(signature, bound, layout, written)
    own_mutation = bool(lowering.mutates)
    metas = outs + written_metas if own_mutation or not signature.mutable else written_metas
    # A lowering gives results before what it writes besides; out= tensors come last in a schema.
    first = sum(a.is_out for a in signature.arguments) if own_mutation else 0
    turn = len(written_metas) - first if first else 0
    metas = metas[turn:] + metas[:turn]
    if signature.foreach:
        return functools.partial(_evaluate_foreach, lowering, layout, signature, metas)
    drop_out = signature.is_out
    contiguous = tuple(t.is_contiguous() for t in bound.tensors)

    def evaluate(
        values: list[jax.Array], numbers: list[Number], seed: Any, offset: Any
    ) -> list[jax.Array]:
        args, kwargs = layout.fill(values, numbers, drop_out)
        call = Call(signature.display, metas, seed, offset, contiguous=contiguous)
        results = flatten_results(lowering.lower(call, *args, **kwargs))
        return results[first:] + results[:first]

    return evaluate


def flatten_results(result: Any) -> list[jax.Array]:
    """The arrays among a lowering's results; None and plain numbers are not computed."""
    if isinstance(result, (tuple, list)):
        return [r for item in result for r in flatten_results(item)]
    if result is None or isinstance(result, (bool, int, float)):
        return []
    return [jnp.asarray(result)]


def _evaluate_foreach(
    lowering: Lowering,
    layout: Layout,
    signature: Signature,
    metas: tuple[TensorMeta, ...],
    values: list[jax.Array],
    numbers: list[Number],
    seed: Any,
    offset: Any,
) -> list[jax.Array]:
    args, kwargs = layout.fill(values, numbers, signature.is_out)
    lists = [a for a in args if isinstance(a, list)]
    count = len(lists[0])
    results = []
    for i in range(count):
        item = [a[i] if isinstance(a, list) else a for a in args]
        named = {k: v[i] if isinstance(v, list) else v for k, v in kwargs.items()}
        call = Call(signature.display, (metas[i],), seed, offset)
        results.append(flatten_results(lowering.lower(call, *item, **named))[0])
    return results


def _compute(
    evaluate: Evaluate,
    views: list[ViewPlan],
    slot_of: tuple[int, ...],
    written: tuple[int, ...],
    mutated: tuple[int, ...],
    fresh: tuple[Fresh, ...],
    kinds: tuple[type, ...],
    random: bool,
    reads: tuple[int, ...],
    slot_count: int,
) -> Callable[..., list[jax.Array]]:
    read_count = len(reads)
    numbers_end = read_count + len(kinds)

    def compute(*inputs: jax.Array) -> list[jax.Array]:
        bases: list[Any] = [None] * slot_count
        for slot, array in zip(reads, inputs[:read_count], strict=True):
            bases[slot] = array
        numbers = [Number(v, k) for v, k in zip(inputs[read_count:numbers_end], kinds, strict=True)]
        seed, offset = inputs[numbers_end:] if random else (None, None)
        values = [
            jnp.zeros(v.size, numpy_dtype(v.dtype)) if bases[slot] is None else v.read(bases[slot])
            for v, slot in zip(views, slot_of, strict=True)
        ]
        results = evaluate(values, numbers, seed, offset)
        made = [store_order(r, f) for r, f in zip(results, fresh, strict=False)]
        for i, result in zip(written, results[len(fresh) :], strict=True):
            view = views[i]
            value = as_array(result, numpy_dtype(view.dtype))
            value = (value.reshape if value.size == math.prod(view.size) else
                     functools.partial(jnp.broadcast_to, value))(view.size)  # fmt: skip
            bases[slot_of[i]] = view.write(bases[slot_of[i]], value)
        return made + [bases[slot] for slot in mutated]

    return compute


def store_order(result: jax.Array, fresh: Fresh) -> jax.Array:
    """A logical result as the array of its buffer: right dtype, axes in storage order."""
    dtype = numpy_dtype(fresh.spec.dtype)
    value = result if result.dtype == dtype else cast(result, dtype)
    if value.shape != fresh.size:
        value = jnp.broadcast_to(value, fresh.size) if value.size != math.prod(fresh.size) else (
            value.reshape(fresh.size))  # fmt: skip
    if fresh.contiguous or 0 in fresh.size:
        return value.reshape(fresh.spec.shape)
    if 0 in fresh.stride:  # elements along these dims are one
        value = value[tuple([slice(None, 1) if s == 0 else slice(None) for s in fresh.stride])]
    size = value.shape
    if fresh.spec.numel != value.size:  # not dense
        view = view_plan(fresh.spec, fresh.spec.dtype, size, fresh.stride, 0)
        return view.write(jnp.zeros(fresh.spec.shape, dtype), value)
    order = sorted(range(len(size)), key=lambda i: (-fresh.stride[i], -size[i]))
    return value.transpose(order)


def cast(value: jax.Array, dtype: Any) -> jax.Array:
    """astype as torch casts: complex to real drops the imaginary part, float to bool is != 0."""
    if jnp.issubdtype(value.dtype, jnp.complexfloating) and not jnp.issubdtype(
        dtype, jnp.complexfloating
    ):
        value = value.real if dtype != jnp.bool_ else value != 0
    if jnp.issubdtype(dtype, jnp.unsignedinteger) and jnp.issubdtype(value.dtype, jnp.floating):
        value = value.astype(jnp.int64)  # wraps like C on x86, where XLA would saturate
    return value.astype(dtype)
