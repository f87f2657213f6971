"""Runs one cell: every sample on device "tpu" and on the CPU, until all are compared."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.conformance import random_ops
from tests.conformance.agreement import Disagreement, agree, widened
from tests.conformance.alignment import aligned
from tests.conformance.cells import Cell, Result
from tests.conformance.open_indices import by_what_they_select, has_open_indices
from tests.conformance.samples import (
    UNINITIALISED,
    Call,
    Choice,
    Sample,
    database,
    error_samples,
    noncontiguous_samples,
    samples,
    seed_everything,
)
from tpu_perf.runtime.modes import EagerMode, mode_set_to

_MODES = {"strict": EagerMode.DEFER_NEVER, "defer_and_fuse": EagerMode.DEFER_AND_FUSE,
          "compile": EagerMode.DEFER_NEVER}  # fmt: skip
#: What the device says of an op that it has no program for. It is a RuntimeError, and must not
#: pass for the error that torch raises.
_NOT_LOWERED = "device tpu cannot run"

#: Torch's own kernels of these write outside of a transposed out= tensor with batch dims (2.13.0):
#: the process dies soon after.
_CPU_WRITES_OUTSIDE = frozenset({"tril", "triu", "linalg.lu", "lu_unpack"})

#: And these write other values into a transposed out= tensor than they return without one.
_CPU_IGNORES_STRIDES = frozenset({"narrow_copy", "nn.functional.avg_pool3d"})


class Absent(Exception):
    """Torch on the CPU has no such case."""


def run_cell(cell: Cell, choice: Choice) -> Result:
    """Check one cell on the samples chosen. Never raises: what goes wrong is the result."""
    op = database()[cell.op]
    dtype = getattr(torch, cell.dtype)
    result = Result(cell, "passed")
    start = time.perf_counter()
    try:
        with mode_set_to(_MODES[cell.mode]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, attempt in _attempts(op, dtype, cell, choice):
                result.samples += 1
                message = _failure(attempt)
                if message is None:
                    continue
                result.failed_samples += 1
                if not result.message:
                    result.message = f"{message} | {name}"[:1500]
    except Absent:
        pass
    except Exception as error:
        result.failed_samples += 1
        result.samples += 1
        result.message = f"making samples: {type(error).__name__}: {error}"[:1500]
    result.seconds = time.perf_counter() - start
    result.status = "absent" if not result.samples else (
        "failed" if result.failed_samples else "passed")  # fmt: skip
    return result


Attempt = tuple[str, Callable[[], None]]


def _failure(attempt: Callable[[], None]) -> str | None:
    try:
        attempt()
    except Disagreement as error:
        return str(error)
    except Exception as error:
        # Only the first lines: torch.compile adds a page of advice.
        return f"{type(error).__name__}: {str(error)[:600]}".replace("\n", "; ")
    return None


def _attempts(op: Any, dtype: torch.dtype, cell: Cell, choice: Choice) -> Iterator[Attempt]:
    supported = op.supported_dtypes("cpu")
    if cell.check == "errors":
        yield from _errors(op)
        return
    if dtype not in supported:
        raise Absent
    if cell.check in ("forward", "noncontiguous"):
        make = samples if cell.check == "forward" else noncontiguous_samples
        yield from _forward(op, make(op, dtype, choice), cell)
    elif cell.check == "inplace":
        yield from _inplace(op, dtype, choice)
    elif cell.check == "out":
        yield from _out(op, dtype, choice)
    elif dtype in op.supported_backward_dtypes("cpu"):
        yield from _gradient(op, samples(op, dtype, choice, requires_grad=True), cell)


def _forward(op: Any, given: Iterator[Sample], cell: Cell) -> Iterator[Attempt]:
    for sample in given:
        if random_ops.is_random(op, sample):
            yield sample.summary, partial(_random, op, sample, cell.mode)
            continue
        host = sample.on_cpu()
        seed_everything()
        try:
            want = host.of(op)
        except Exception:  # a sample that torch itself refuses
            continue

        def attempt(sample: Sample = sample, host: Call = host, want: Any = want) -> None:
            device = sample.on_device()
            got = device.of(_in_mode(op, cell.mode))
            got = aligned(op.name, got, want)
            if has_open_indices(op, sample):
                agree(got, want, values=False)
                got, want = (by_what_they_select(op, sample, r) for r in (got, want))
            agree(got, want, lambda: _exactly(op, sample), op.name not in UNINITIALISED)
            _same_inputs(device, host)

        yield sample.summary, attempt


def _random(op: Any, sample: Sample, mode: str) -> None:
    random_ops.check(_in_mode(op, mode), op, sample)


def _exactly(op: Any, sample: Sample) -> Any:
    call = sample.on_cpu()
    return Call(*widened((call.input, call.args, call.kwargs))).of(op)


def _same_inputs(device: Call, host: Call) -> None:
    """What the call wrote into its arguments must be the same too."""
    ours = pytree.tree_leaves((device.input, device.args, device.kwargs))
    theirs = pytree.tree_leaves((host.input, host.args, host.kwargs))
    for a, b in zip(ours, theirs, strict=False):
        if isinstance(b, torch.Tensor) and b._version and not b.is_inference():
            agree(a, b)


def _in_mode(op: Any, mode: str) -> Callable[..., Any]:
    return _compiled(op, "tpu") if mode == "compile" else op


def _compiled(op: Any, backend: str) -> Callable[..., Any]:
    torch._dynamo.reset()

    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    return torch.compile(call, backend=backend)


def _inplace(op: Any, dtype: torch.dtype, choice: Choice) -> Iterator[Attempt]:
    inplace = op.inplace_variant
    if inplace is None:
        raise Absent
    for sample in samples(op, dtype, choice):
        if sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
            continue
        if random_ops.is_random(op, sample):
            yield sample.summary, partial(random_ops.check, inplace, op, sample)
            continue
        host = sample.on_cpu()
        try:
            host.of(inplace)
        except Exception:  # for example a result that the input's dtype cannot hold
            continue

        def attempt(sample: Sample = sample, host: Call = host) -> None:
            device = sample.on_device()
            returned = device.of(inplace)
            if returned is not device.input:
                raise Disagreement("the in-place variant returned another tensor")
            agree(device.input, host.input, lambda: _exactly(op, sample),
                  op.name not in UNINITIALISED)  # fmt: skip

        yield sample.summary, attempt


def _out(op: Any, dtype: torch.dtype, choice: Choice) -> Iterator[Attempt]:
    if not op.supports_out:
        raise Absent
    for sample in samples(op, dtype, choice):
        if random_ops.is_random(op, sample):
            continue
        try:
            plain = sample.on_cpu().of(op)
        except Exception:
            continue
        for form in ("sized", "empty", "transposed"):
            if form == "transposed" and op.name in _CPU_WRITES_OUTSIDE | _CPU_IGNORES_STRIDES:
                continue
            host_out = _out_tensors(plain, form, "cpu")
            try:
                want = sample.on_cpu().of(lambda *a, o=host_out, **k: op(*a, **k, out=o))
            except Exception:
                continue

            def attempt(sample: Sample = sample, form: str = form, plain: Any = plain,
                        want: Any = want, host_out: Any = host_out) -> None:  # fmt: skip
                given = _out_tensors(plain, form, "tpu")
                got = sample.on_device().of(lambda *a, **k: op(*a, **k, out=given))
                values = op.name not in UNINITIALISED
                for ours, theirs in ((got, want), (given, host_out)):
                    ours = aligned(op.name, ours, theirs)
                    if has_open_indices(op, sample):
                        agree(ours, theirs, values=False)  # the indices' own form
                        ours = by_what_they_select(op, sample, ours)
                        theirs = by_what_they_select(op, sample, theirs)
                    agree(ours, theirs, lambda: _exactly(op, sample), values)

            yield f"out {form}: {sample.summary}", attempt


def _out_tensors(result: Any, form: str, device: str) -> Any:
    """Tensors to write a result into: as large as it, empty, or of transposed strides."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if form == "empty":
            return torch.empty(0, dtype=value.dtype, device=device)
        if form == "transposed" and value.dim() > 1:
            turned = torch.zeros(value.shape[::-1], dtype=value.dtype, device=device)
            return turned.permute(tuple(reversed(range(value.dim()))))
        return torch.zeros(value.shape, dtype=value.dtype, device=device)

    if isinstance(result, (list, tuple)):
        return tuple(leaf(v) for v in result)
    return leaf(result)


def _gradient(op: Any, given: Iterator[Sample], cell: Cell) -> Iterator[Attempt]:
    for sample in given:
        if random_ops.is_random(op, sample):
            continue
        try:
            want = _gradients(op, sample, sample.on_cpu())
        except Exception:
            continue
        if want is None:
            continue

        def attempt(sample: Sample = sample, want: Any = want) -> None:
            got = _gradients(_in_mode(op, cell.mode), sample, sample.on_device())

            def compiled_on_cpu() -> Any:
                return _gradients(_compiled(op, "aot_eager"), sample, sample.on_cpu())

            # torch.compile lays gradients out anew; on the CPU it does so in the same way.
            strides_of = compiled_on_cpu if cell.mode == "compile" else None
            agree(got, want, lambda: _exact_gradients(op, sample), strides_of=strides_of)

        yield sample.summary, attempt


def _exact_gradients(op: Any, sample: Sample) -> Any:
    call = sample.on_cpu()
    needed = pytree.tree_map(
        lambda v: isinstance(v, torch.Tensor) and v.requires_grad,
        (call.input, call.args, call.kwargs),
    )
    wide = widened((call.input, call.args, call.kwargs))
    pytree.tree_map(lambda v, n: v.requires_grad_() if n else v, wide, needed)
    return _gradients(op, sample, Call(*wide))


def _gradients(function: Callable[..., Any], sample: Sample, call: Call) -> Any:
    """Gradients of a weighted sum of the outputs; None if nothing is differentiable. The weights
    are drawn on the CPU in the sample's own dtype and are the same everywhere."""
    inputs = [
        v for v in pytree.tree_leaves((call.input, call.args, call.kwargs))
        if isinstance(v, torch.Tensor) and v.requires_grad
    ]  # fmt: skip
    result = sample.differentiated(call.of(function))
    outputs = [
        v for v in pytree.tree_leaves(result)
        if isinstance(v, torch.Tensor) and v.requires_grad
    ]  # fmt: skip
    if not inputs or not outputs:
        return None
    generator = torch.Generator().manual_seed(1)
    weights = []
    for output in outputs:
        drawn = torch.rand(output.shape, generator=generator, dtype=torch.float32) + 0.5
        weights.append(drawn.to(output.dtype).to(output.device))
    return torch.autograd.grad(outputs, inputs, weights, allow_unused=True)


def _errors(op: Any) -> Iterator[Attempt]:
    if op.error_inputs_func is None:
        raise Absent
    for sample, kind in error_samples(op):
        try:
            sample.on_cpu().of(op)
        except Exception as error:
            theirs = error
        else:
            continue

        def attempt(sample: Sample = sample, kind: Any = kind, theirs: Any = theirs) -> None:
            try:
                device = sample.on_device()
                result = device.of(op)
                torch.tpu.synchronize()  # type: ignore[attr-defined]
            except Exception as error:
                if _NOT_LOWERED in str(error):
                    raise
                if not isinstance(error, (kind, type(theirs))):
                    raise Disagreement(
                        f"{type(error).__name__}: {error} instead of "
                        f"{type(theirs).__name__}: {theirs}"
                    ) from None
                return
            raise Disagreement(
                f"no error (result {type(result).__name__}) instead of "
                f"{type(theirs).__name__}: {str(theirs)[:300]}"
            )

        yield sample.summary, attempt
