"""Debug mode: every op runs alone, its indices are checked before and its values after.

Checked are indices out of bounds, NaN and infinity that an op makes from finite values, and casts
to a type that cannot hold the value. TPU_PERF_DEBUG_INFINITY=0 lets infinities pass, for models
that make them on purpose.
"""

from __future__ import annotations

import functools
import math
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpu_perf.runtime.binding import Bound
from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.program_cache import user_line
from tpu_perf.runtime.signatures import Signature


class DebugCheckFailed(RuntimeError):
    """An op was given an index out of range, or made the first NaN or infinity."""


class DebugIndexError(DebugCheckFailed, IndexError):
    """As torch's own IndexError, with the op and the user's line."""


class DebugOverflowError(DebugCheckFailed, OverflowError):
    """A cast to a dtype that cannot hold the value."""


def describe(signature: Signature, bound: Bound) -> str:
    """The op with the shapes and dtypes of its tensor arguments."""
    shapes = ", ".join(
        f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in bound.tensors[:8]
    )
    more = ", ..." if len(bound.tensors) > 8 else ""
    return f"{signature.display}({shapes}{more})"


def where() -> str:
    line = user_line()
    graph = ""
    if torch._C._current_graph_task_id() != -1:
        node = torch._C._current_autograd_node()
        graph = f", in backward of {node.name()}" if node is not None else ", in backward"
    return f" at {line}{graph}" if line else graph


_count_bad = jax.jit(lambda x: jnp.stack([jnp.isnan(x).sum(), jnp.isinf(x).sum()]))
_all_finite = jax.jit(lambda x: jnp.isfinite(x).all())


def check_indices(signature: Signature, bound: Bound) -> None:
    """Raise DebugIndexError if an index tensor of this op points outside what it indexes."""
    lowering = signature.lowering
    if lowering is None or lowering.index_check is None:
        return
    named = {a.name: v for a, v in zip(signature.arguments, bound.values, strict=True)}
    for indices, size, label, low in _indexed(lowering.index_check, named):
        if indices is None or not isinstance(indices, torch.Tensor) or indices.numel() == 0:
            continue
        if indices.dtype in (torch.bool, torch.uint8):
            continue
        ignored = named.get("ignore_index")
        host = indices.detach().cpu()
        if ignored is not None:
            host = host[host != ignored]
            if host.numel() == 0:
                continue
        lowest, highest = int(host.min()), int(host.max())
        bad = highest if highest >= size else lowest if lowest < low else None
        if bad is not None:
            raise DebugIndexError(
                f"{describe(signature, bound)}: index {bad} in {label} is out of bounds for "
                f"dimension of size {size}{where()}"
            )


def _indexed(check: str, named: dict[str, Any]) -> list[tuple[Any, int, str, int]]:
    """Read the table's `index_check`: "indices:dim:source" names the index argument, the
    dimension (a number, the name of an argument that holds it, or "all" for the flattened
    source) and the indexed argument; a fourth part "wraps" says that negative indices count from
    the end. "indices:*:source" is a list of index tensors, one a dimension."""
    index_name, dim_name, source_name, *more = check.split(":")
    index, source = named.get(index_name), named.get(source_name)
    if source is None or index is None:
        return []
    if dim_name == "*":
        return [
            (item, source.shape[dim], f"{index_name}[{dim}]", -source.shape[dim])
            for dim, item in enumerate(index)
        ]
    if dim_name == "all":
        size = source.numel()
    elif source.dim() == 0:
        return []
    else:
        dim = int(dim_name) if dim_name.lstrip("-").isdigit() else int(named[dim_name])
        size = source.shape[dim]
    return [(index, size, index_name, -size if more else 0)]


#: NaN and infinities among a tensor's values.
Bad = tuple[int, int]
_FINITE: Bad = (0, 0)


def _bad_in(array: jax.Array) -> Bad:
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return _FINITE
    nans, infinities = _count_bad(array)
    return int(nans), int(infinities)


def _is_finite(array: jax.Array) -> bool:
    """Whether an array holds neither NaN nor infinity. On the CPU numpy looks at it in place,
    which for a small one takes a tenth of a program's time."""
    if array.dtype.kind in "biu":
        return True
    if _on_host() and array.dtype.kind in "fc" and array.size <= _SMALL:
        return bool(np.isfinite(np.asarray(array)).all())
    return not jnp.issubdtype(array.dtype, jnp.inexact) or bool(_all_finite(array))


@functools.cache
def _on_host() -> bool:
    return jax.default_backend() == "cpu"


#: Elements up to which numpy is faster than a program and its dispatch.
_SMALL = 1 << 14


def arrays_before(bound: Bound) -> list[jax.Array]:
    """The arrays of a call's arguments. They must outlive the call: Debug donates none."""
    return [buffer.ready("debug_mode") for buffer in bound.buffers]


def _bad_inputs(bound: Bound, arrays: list[jax.Array]) -> Bad:
    """NaN and infinities among what a call was given."""
    found = [_bad_in(array) for array in arrays]
    infinite = sum(isinstance(n, float) and math.isinf(n) for n in bound.numbers)
    missing = sum(isinstance(n, float) and math.isnan(n) for n in bound.numbers)
    return sum(f[0] for f in found) + missing, sum(f[1] for f in found) + infinite


def check_values(
    signature: Signature, bound: Bound, outs: tuple[jax.Array, ...], given: list[jax.Array]
) -> None:
    """Wait for the op and raise DebugCheckFailed if it made a NaN or infinity out of finite
    inputs. What came in with the arguments (the arrays `given`) was reported where it was made,
    or meant."""
    jax.block_until_ready(outs)
    if signature.functional.partition(".")[0] in _MAY_BE_NOT_FINITE:
        return
    before: Bad | None = None
    for i, array in enumerate(outs):
        if _is_finite(array):
            continue
        if before is None:
            before = _bad_inputs(bound, given)
        nans, infinities = _bad_in(array)
        if nans and not before[0]:  # also one made from infinities, as in softmax of a masked row
            told = f"{nans} NaN among {array.size} values"
        elif infinities and not any(before) and _checks_infinity:
            told = (
                f"{infinities} infinite among {array.size} values (overflow, or a division by "
                "zero; TPU_PERF_DEBUG_INFINITY=0 lets infinities pass)"
            )
        else:
            continue
        raise DebugCheckFailed(f"{describe(signature, bound)}: output {i} has {told}{where()}")


_checks_infinity = os.environ.get("TPU_PERF_DEBUG_INFINITY", "1") != "0"

#: Ops that hand on or are given NaN on purpose.
_MAY_BE_NOT_FINITE = {
    "fill", "full", "full_like", "copy", "copy_", "clone", "empty", "where", "masked_fill",
    "_to_copy",
}  # fmt: skip


def check_cast(signature: Signature, bound: Bound) -> None:
    """Raise DebugOverflowError if this is a cast to a dtype that cannot hold the values."""
    functional = signature.functional.partition(".")[0]
    if functional not in ("_to_copy", "copy", "copy_"):
        return
    named = {a.name: v for a, v in zip(signature.arguments, bound.values, strict=True)}
    if functional == "_to_copy":
        source, target = named["self"], named.get("dtype")
    else:
        source, target = named["src"], named["self"].dtype
    if target is None or source.device.type != "tpu" or target in (source.dtype, torch.bool):
        return
    if source.numel() == 0 or source.dtype is torch.bool or target.is_complex:
        return
    array = _value(source)
    lost = int(_too_large(array, target))
    if lost:
        raise DebugOverflowError(
            f"{describe(signature, bound)}: {lost} of {array.size} values do not fit into "
            f"{target}{where()}"
        )


def _value(tensor: torch.Tensor) -> jax.Array:
    from tpu_perf.runtime.exchange import to_jax

    return to_jax(tensor.detach())


def _too_large(array: jax.Array, target: torch.dtype) -> jax.Array:
    """How many values a dtype cannot hold."""
    dtype = numpy_dtype(target)
    if target.is_floating_point:
        wide = array.astype(jnp.float64) if not jnp.iscomplexobj(array) else array.real
        return (jnp.isfinite(wide) & jnp.isinf(wide.astype(dtype))).sum()
    bounds = np.iinfo(dtype)
    if jnp.issubdtype(array.dtype, jnp.integer):
        own = np.iinfo(array.dtype)
        low, high = max(bounds.min, own.min), min(bounds.max, own.max)
        return ((array < low) | (array > high)).sum()
    real = jnp.trunc(array.real.astype(jnp.float64))
    fits = (real >= float(bounds.min)) & (real < float(bounds.max) + (bounds.max < 2**53))
    return (~fits).sum()
