"""The kernel behind every aten overload on the device, and its registration with PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from tpu_perf.recorder import active
from tpu_perf.recorder.packing import dispatch_event
from tpu_perf.runtime.binding import Bound, bind
from tpu_perf.runtime.call_plan import CallPlan
from tpu_perf.runtime.debug import (
    DebugCheckFailed,
    arrays_before,
    check_cast,
    check_indices,
    check_values,
    describe,
    where,
)
from tpu_perf.runtime.execution import run_now
from tpu_perf.runtime.foreign_layouts import way_out
from tpu_perf.runtime.forking import refuse_in_child
from tpu_perf.runtime.lowerings.registry import TABLE
from tpu_perf.runtime.modes import STATE, EagerMode
from tpu_perf.runtime.moving_views import held_still
from tpu_perf.runtime.plan_building import OutputNeedsResize, build_plan
from tpu_perf.runtime.plan_metas import NotLowered
from tpu_perf.runtime.segment import current_segment
from tpu_perf.runtime.signatures import Signature, functional_form, signature_of
from tpu_perf.runtime.torch_private import dynamo_looking_away

_clock = time.perf_counter_ns


def call(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run (or record) one op."""
    recorder = active.recorder
    start = _clock() if recorder is not None else 0
    if signature.check is not None:
        signature.check(*args, **kwargs)
    bound = bind(signature, args, kwargs)
    plan = signature.plans.get(bound.key)
    if plan is None:
        with dynamo_looking_away():
            still = held_still(signature, bound, args, kwargs)
        if still is not None:
            return call(signature, *still)
        try:
            with dynamo_looking_away():
                plan = build_plan(signature, bound)
        except OutputNeedsResize as resize:
            for position, (shape, stride) in resize.forms:
                resized = bound.tensors[position].resize_(shape)
                if resized.stride() != stride:
                    resized.as_strided_(shape, stride)
            return call(signature, args, kwargs)
        except NotLowered as problem:
            return cannot_run(signature, bound, args, kwargs, problem)
        signature.plans[bound.key] = plan
    mode = STATE.mode
    if mode is EagerMode.DEFER_NEVER:
        result, _, program = run_now(plan, bound)
        if recorder is not None and program is not None:
            recorder.dispatch(
                dispatch_event(start, _clock(), signature.number, program.index, recorder.step)
            )
        return result
    if mode is EagerMode.DEFER_AND_FUSE:
        result = current_segment().record(
            plan, bound.buffers, bound.numbers, bound.tensors, bound.draws
        )
        if recorder is not None:
            recorder.dispatch(dispatch_event(start, _clock(), signature.number, -1, recorder.step))
        return result
    return _run_checked(signature, plan, bound, start)


def _run_checked(signature: Signature, plan: CallPlan, bound: Bound, start: int) -> Any:
    refuse_in_child()
    check_indices(signature, bound)
    check_cast(signature, bound)
    given = arrays_before(bound)
    try:
        result, outs, program = run_now(plan, bound, donates=False)
        check_values(signature, bound, outs, given)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, (NotImplementedError, DebugCheckFailed)):  # these say where
            raise
        raise type(error)(f"{error} ({describe(signature, bound)}{where()})") from error
    recorder = active.recorder
    if recorder is not None and program is not None:
        recorder.dispatch(
            dispatch_event(start, _clock(), signature.number, program.index, recorder.step)
        )
    return result


def cannot_run(
    signature: Signature,
    bound: Bound,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    problem: NotLowered,
) -> Any:
    """Compute on the host if the user allowed it, else say what is missing and the way out."""
    instead = way_out(signature.display)
    if instead is not None:
        raise NotImplementedError(
            f"device tpu cannot run {describe(signature, bound)}{where()}: {instead}."
        ) from None
    if not STATE.cpu_fallback:
        raise NotImplementedError(
            f"device tpu cannot run {describe(signature, bound)}{where()}: {problem}. To compute "
            "this op on the host (slow, and shown in the report) set TORCH_TPU_CPU_FALLBACK=1."
        ) from None
    from tpu_perf.runtime.host_fallback import run_on_host

    return run_on_host(signature, args, kwargs)


def kernel_for(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """The Python kernel of one overload."""
    from tpu_perf.runtime.fast_kernels import fast_kernel

    signature = signature_of(op)
    fast = fast_kernel(signature)
    if fast is not None:
        return fast

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return call(signature, args, kwargs)

    return kernel


#: Overloads that torch builds from others well, or that aten_kernels.py implements by hand.
_LEFT_TO_TORCH = {
    "_unsafe_view", "detach", "alias", "lift", "lift_fresh", "view", "reshape", "empty_like",
    "new_empty", "new_empty_strided",
    "expand", "slice", "select", "permute", "transpose", "t", "squeeze", "unsqueeze", "diagonal",
    "split", "split_with_sizes", "unbind", "unfold", "view_as_real", "view_as_complex",
    "_reshape_alias", "as_strided", "_conj", "_neg_view", "is_pinned", "resize_as_",
    "requires_grad_",
    "linalg_pinv", "_reshape_copy", "_scaled_dot_product_attention_math", "_foreach_copy",
}  # fmt: skip


def register_all(library: torch.library.Library, by_hand: set[str]) -> int:
    """Register a kernel for every overload that needs one; returns how many."""
    count = 0
    composite = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        short = name.removeprefix("aten::")
        base, _, overload = short.partition(".")
        if short in by_hand or base in _LEFT_TO_TORCH:
            continue
        packet = getattr(torch.ops.aten, base, None)
        op = getattr(packet, overload or "default", None) if packet is not None else None
        if op is None:
            continue
        if torch.Tag.inplace_view in op.tags:
            continue  # changes a tensor's geometry, not its values
        functional, _ = functional_form(op)
        covered = functional in TABLE
        if composite(name, "CompositeImplicitAutograd") and not (covered and functional in _KEEP):
            continue
        if not covered and composite(name, "CompositeExplicitAutograd"):
            continue
        if base.endswith("_copy") and not covered:
            continue
        library.impl(short, kernel_for(op), "PrivateUse1")
        count += 1
    return count


#: Composite ops that the device takes whole, because one program is better than many. Not matmul:
#: torch has no second derivative of its whole form.
_KEEP = {
    "linear.default", "_fused_rms_norm.default", "silu_backward.default", "mish_backward.default",
}  # fmt: skip


def fall_back(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Boxed fallback: overloads without a registered kernel."""
    signature = _late_signatures.get(op)
    if signature is None:
        signature = _late_signatures[op] = signature_of(op)
    return call(signature, args, kwargs)


_late_signatures: dict[Any, Signature] = {}
