"""What torch's meta kernels say of a call: the shapes, strides and errors of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tpu_perf.runtime.argument_checks import CHECKS
from tpu_perf.runtime.binding import Bound
from tpu_perf.runtime.buffers import contiguous_strides
from tpu_perf.runtime.meta_kernels import FORMS
from tpu_perf.runtime.signatures import TENSOR, TENSORS, Signature, overload
from tpu_perf.runtime.torch_private import layouts_as_on_cpu

#: Shape and strides of a tensor.
Form = tuple[tuple[int, ...], tuple[int, ...]]


class NotLowered(NotImplementedError):
    """The device has no program for this op."""


class Metas:
    """The arguments of a call with its tensors as tensors of the meta device, those also in a list
    in the order of the schema."""

    __slots__ = ("args", "kwargs", "tensors")

    def __init__(self) -> None:
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        self.tensors: list[torch.Tensor] = []


def _meta_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "tpu":
        # A 0-dim CPU tensor promotes as one of the device, and is welcome where torch's meta
        # kernels ask for one device.
        return torch.empty((), dtype=tensor.dtype, device="meta")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def meta_arguments(signature: Signature, bound: Bound) -> Metas:
    """The arguments for the meta kernel; a tensor given twice stays one."""
    metas = Metas()
    seen: dict[int, torch.Tensor] = {}

    def meta(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = seen.get(id(value))
        if made is None:
            made = seen[id(value)] = _meta_tensor(value)
        metas.tensors.append(made)
        return made

    for argument, value in zip(signature.arguments, bound.values, strict=True):
        if argument.kind == TENSOR:
            value = meta(value)
        elif argument.kind == TENSORS and value is not None:
            value = [meta(v) for v in value]
        elif argument.name == "device" and value is not None:
            value = torch.device("meta")
        elif argument.name == "pin_memory":
            continue
        elif argument.name == "generator":
            value = None  # draws are ours; some overloads have no default for it
        if argument.keyword_only:
            metas.kwargs[argument.name] = value
        else:
            metas.args.append(value)
    if any(a.name == "device" for a in signature.arguments):
        metas.kwargs["device"] = torch.device("meta")
    return metas


def run_meta(signature: Signature, metas: Metas) -> Any:
    """What the op returns for these arguments, as meta tensors; None for foreach and other ops
    that only write. Raises what torch raises for wrong arguments, and NotLowered without a meta
    kernel."""
    silent = not signature.op._schema.returns and signature.lowering is not None
    if silent and not signature.is_out:
        return None  # works in place on what it is given: nothing to learn from a meta kernel
    outs = [a.name for a in signature.arguments if a.is_out]
    check = CHECKS.get(signature.functional)
    if check is not None:
        check(*metas.args, **{k: v for k, v in metas.kwargs.items() if k not in outs})
    with torch._C._DisableAutocast(), torch.no_grad(), layouts_as_on_cpu():
        form = FORMS.get(signature.functional)
        if silent and form is None:
            form = overload(signature.functional)
        try:
            if form is None:
                return signature.op(*metas.args, **metas.kwargs)
        except AssertionError as error:  # some of torch's meta kernels check their arguments so
            raise RuntimeError(str(error)) from None
        except NotImplementedError as error:
            form = overload(signature.functional) if signature.is_out else None
            if form is None:
                raise NotLowered(f"{signature.display} has no meta kernel: {error}") from None
        try:
            return _meta_from_functional(signature, metas, form)
        except NotImplementedError as error:
            raise NotLowered(f"{signature.display} has no meta kernel: {error}") from None


def _meta_from_functional(signature: Signature, metas: Metas, form: Callable[..., Any]) -> Any:
    """What an overload gives, from the meta kernel of its functional form: out= tensors take its
    shapes, as torch's own resize them."""
    outs = [a.name for a in signature.arguments if a.is_out]
    if not signature.is_out:
        return form(*metas.args, **metas.kwargs)
    options = {k: v for k, v in metas.kwargs.items() if k not in outs}
    made = form(*metas.args, **options)
    results = list(made) if isinstance(made, (tuple, list)) else [made]
    given: list[torch.Tensor] = []
    for name in outs:
        out = metas.kwargs[name]
        given += out if isinstance(out, (list, tuple)) else [out]
    for result, out in zip(results, given, strict=True):
        if not torch.can_cast(result.dtype, out.dtype):
            raise RuntimeError(
                f"{signature.display}: result type {result.dtype} can't be cast to the desired "
                f"output type {out.dtype}"
            )
        if result.shape != out.shape:
            out.resize_(result.shape)
    if not signature.op._schema.returns:
        return None
    return tuple(given) if len(given) > 1 else given[0]


def _functional_result(signature: Signature, metas: Metas) -> Any:
    """What an out= op would return without its out= tensors."""
    base, _, overload = signature.functional.partition(".")
    functional = getattr(getattr(torch.ops.aten, base), overload)
    outs = {a.name for a in signature.op._schema.arguments if a.is_out}
    return functional(*metas.args, **{k: v for k, v in metas.kwargs.items() if k not in outs})


#: Ops that give what they resize the strides of their results without being structured.
_AS_RESULTS = frozenset({
    "ormqr.default", "cholesky_inverse.default", "geqrf.default", "linalg_eig.default",
    "linalg_householder_product.default", "conj_physical.default",
})  # fmt: skip


def forms(
    signature: Signature, metas: Metas, wanted: list[torch.Tensor], resized: list[int]
) -> list[tuple[int, Form]]:
    """Shapes and strides for the tensors to resize. Structured ops give out= tensors the strides
    of their results, as few others do; torch's wrapper of Python meta kernels never does."""
    forms = {i: (tuple(wanted[i].shape), tuple(wanted[i].stride())) for i in resized}
    outs = [i for i, m in enumerate(metas.tensors)
            if any(m is v for v in metas.kwargs.values())]  # fmt: skip
    structured = torch._C._dispatch_has_kernel_for_dispatch_key(
        f"aten::{signature.functional.removesuffix('.default')}",
        "CompositeExplicitAutogradNonFunctional",
    )
    if signature.is_out and (structured or signature.functional in _AS_RESULTS):
        with torch._C._DisableAutocast(), torch.no_grad(), layouts_as_on_cpu():
            made = torch.utils._pytree.tree_leaves(_functional_result(signature, metas))
        for i, result in zip(outs, made, strict=False):
            if i in forms and tuple(result.shape) == forms[i][0]:
                forms[i] = (forms[i][0], tuple(result.stride()))
    elif signature.is_out:
        forms = {i: (shape, contiguous_strides(shape)) for i, (shape, _) in forms.items()}
    return list(forms.items())


def outputs_in_place(
    signature: Signature, metas: Metas, result: Any
) -> tuple[Any, list[torch.Tensor]]:
    """The result with the op's out= tensors in it, and the tensors whose forms the arguments must
    have: some meta kernels return tensors of their own and leave out= as it was."""
    wanted = list(metas.tensors)
    returns = signature.op._schema.returns
    if not signature.is_out or not isinstance(result, (torch.Tensor, tuple)):
        return result, wanted
    by_alias = {
        next(iter(a.alias_info.before_set)): metas.kwargs.get(a.name)
        for a in signature.op._schema.arguments
        if a.is_out and a.alias_info is not None
    }
    results = list(result) if isinstance(result, tuple) else [result]
    for i, (value, declared) in enumerate(zip(results, returns, strict=False)):
        given = declared.alias_info and by_alias.get(next(iter(declared.alias_info.before_set)))
        if isinstance(given, torch.Tensor) and value is not given:
            wanted[next(k for k, m in enumerate(wanted) if m is given)] = value
            results[i] = given
    return tuple(results) if isinstance(result, tuple) else results[0], wanted
