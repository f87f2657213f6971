"""Which ops of a backward pass compute a forward op again, as activation checkpointing does.

An op is taken for a recomputation where its site has phase "backward" and the same call (aten op
and geometry of its arguments) runs at the same file, line, function and module in the forward
pass, and one of these holds:

- stack: the stack of its site is none of those that forward ops have there. The gradient of a
  forward op carries the forward's stack; a forward that runs again has its own.
- count: where stacks do not tell them apart (compiled graphs), the call runs more often in the
  backward pass than the gradients of the products there explain.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pandas as pd

from tpu_perf.analysis.op_flops import Call
from tpu_perf.analysis.op_flops.formulas import Attention
from tpu_perf.analysis.run_details import RunDetails, Site, records

RULE = (
    "recomputed: in the backward pass, the same op on the same shapes as in the forward pass of "
    "the same line and module, told by its own stack or by its count"
)

Geometry = tuple[tuple[int, ...], ...]
#: Arguments that a product multiplies.
_FACTORS = {
    "aten::mm": ("self", "mat2"),
    "aten::bmm": ("self", "mat2"),
    "aten::addmm": ("mat1", "mat2"),
    "aten::baddbmm": ("batch1", "batch2"),
}
_GRADIENT_OP = {
    "aten::mm": "aten::mm",
    "aten::addmm": "aten::mm",
    "aten::bmm": "aten::bmm",
    "aten::baddbmm": "aten::bmm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """What runs at one line of one module: forward stacks and executions by call."""

    stacks: set[str]
    forward: dict[int, float]
    backward: dict[int, float]


def recomputed_per_step(
    rows: pd.DataFrame, details: RunDetails, attention: Attention
) -> pd.Series[float]:
    """How many of each row's executions in a step are recomputations; rows as in ExecutedOps."""
    out = pd.Series(0.0, index=rows.index)
    sites = {number: details.site(int(number)) for number in rows["site"].unique()}
    places: dict[tuple[str, int, str, str], _Place] = defaultdict(
        lambda: _Place(stacks=set(), forward=defaultdict(float), backward=defaultdict(float))
    )
    mattering: list[tuple[int, Site, int, float]] = []
    for index, op, call, number, runs in records(rows[["op", "call", "site", "per_step"]]):
        site = sites[number]
        if site is None or call < 0 or not site.file:
            continue
        place = places[site.place]
        if site.phase == "forward":
            place.stacks.add(site.stack)
            place.forward[call] += runs
        elif site.phase == "backward" and details.flops(op, call, attention).model != 0:
            mattering.append((index, site, call, runs))
    for index, site, call, runs in mattering:
        place = places[site.place]
        if call in place.forward and site.stack not in place.stacks:
            out[index] = runs
        else:
            place.backward[call] += runs
    for index, site, call, runs in mattering:
        place = places[site.place]
        if out[index] or call not in place.forward:
            continue
        surplus = place.backward[call] - _gradients_like(call, place, details)
        again = min(max(0.0, surplus), place.forward[call])
        out[index] = runs * again / place.backward[call]
    return out


def _gradients_like(call: int, place: _Place, details: RunDetails) -> float:
    """Executions of this call that the gradients of the products at a place need at most."""
    wanted = _geometry(details.calls.get(call))
    if wanted is None:
        return 0.0
    total = 0.0
    for forward, runs in place.forward.items():
        found = _geometry(details.calls.get(forward))
        if found is not None:
            total += runs * sum(gradient == wanted for gradient in _gradients(*found))
    return total


def _geometry(call: object) -> tuple[str, Geometry] | None:
    """A product's op and the shapes of its factors."""
    if not isinstance(call, Call) or call.name not in _FACTORS:
        return None
    try:
        return call.name, tuple(call.shape(name) for name in _FACTORS[call.name])
    except ValueError:
        return None


def _gradients(op: str, factors: Geometry) -> list[tuple[str, Geometry]]:
    """For A (n x k) times B (k x m): G (n x m) times B^T, and A^T times G."""
    (*batch, n, k), (*_, m) = factors
    made = _GRADIENT_OP[op]
    lead = tuple(batch)
    return [
        (made, ((*lead, n, m), (*lead, m, k))),
        (made, ((*lead, k, n), (*lead, n, m))),
    ]
