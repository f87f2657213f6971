"""Debug mode: every op runs alone, its indices are checked before and its values after."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpu_perf.runtime.binding import Bound
from tpu_perf.runtime.call_plan import CallPlan
from tpu_perf.runtime.program_cache import user_line
from tpu_perf.runtime.signatures import Signature


class DebugCheckFailed(RuntimeError):
    """An op was given an index out of range, or made the first NaN or infinity."""


class DebugIndexError(DebugCheckFailed, IndexError):
    """As torch's own IndexError, with the op and the user's line."""


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
    dimension (a number, or the name of an argument that holds it) and the indexed argument;
    "indices:*:source" is a list of index tensors, one a dimension."""
    index_name, dim_name, source_name = check.split(":")[:3]
    index, source = named.get(index_name), named.get(source_name)
    if source is None or index is None:
        return []
    if dim_name == "*":
        return [
            (item, source.shape[dim], f"{index_name}[{dim}]", -source.shape[dim])
            for dim, item in enumerate(index)
        ]
    dim = int(dim_name) if dim_name.lstrip("-").isdigit() else int(named[dim_name])
    if source.dim() == 0:
        return []
    size = source.shape[dim]
    return [(index, size, index_name, 0 if index_name != "index" else -size)]


def check_values(
    signature: Signature, plan: CallPlan, bound: Bound, outs: tuple[jax.Array, ...]
) -> None:
    """Wait for the op and raise DebugCheckFailed if it made a NaN or infinity out of finite
    inputs."""
    jax.block_until_ready(outs)
    if signature.functional.partition(".")[0] in _MAY_BE_NOT_FINITE:
        return
    for i, array in enumerate(outs):
        if not jnp.issubdtype(array.dtype, jnp.inexact):
            continue
        nans, infinities = (int(n) for n in _count_bad(array))
        if not nans and not infinities:
            continue
        if any(_has_bad(t, bool(nans)) for t in bound.tensors):
            continue  # it came in with the arguments: its maker was reported, or meant it
        if not nans:
            continue  # infinities are how masks are written; only NaN is always a mistake
        raise DebugCheckFailed(
            f"{describe(signature, bound)}: output {i} has {nans} NaN "
            f"among {array.size} values{where()}"
        )


def _has_bad(tensor: torch.Tensor, nan: bool) -> bool:
    from tpu_perf.runtime.buffers import buffer_of

    if tensor.device.type != "tpu":
        return False
    array = buffer_of(tensor).ready("debug_mode")
    if array.is_deleted() or not jnp.issubdtype(array.dtype, jnp.inexact):
        return False
    return bool(int(_count_bad(array)[0 if nan else 1]))


#: Ops that hand on or are given NaN on purpose.
_MAY_BE_NOT_FINITE = {"fill", "full", "copy", "clone", "empty", "where", "masked_fill", "isnan"}
