"""Thirty common ops on small tensors: what one call of each costs on device "tpu"."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Calls of one op in a timed unit, which ends with a fence.
CALLS = 200
_clock = time.perf_counter_ns

Call = Callable[[], Any]

#: Names in the order of `calls`; the rows' labels.
OPS = (
    "add", "sub_scalar", "mul", "div", "pow", "neg", "exp", "sqrt", "rsqrt", "tanh", "sigmoid",
    "relu", "gelu", "silu", "add_", "eq", "where", "masked_fill", "sum", "mean", "amax", "argmax",
    "softmax", "layer_norm", "mm", "bmm", "cat", "clone", "to_bfloat16", "embedding",
)  # fmt: skip


def calls() -> dict[str, Call]:
    """One call of each op, on tensors that stay the same between calls."""
    import torch
    from torch.nn import functional

    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(8, 8, generator=generator) + 0.5).to("tpu")
    y = (torch.rand(8, 8, generator=generator) + 0.5).to("tpu")
    batched = (torch.rand(2, 8, 8, generator=generator) + 0.5).to("tpu")
    mask = torch.rand(8, 8, generator=generator).gt(0.5).to("tpu")
    weight, bias = torch.ones(8).to("tpu"), torch.zeros(8).to("tpu")
    indices = torch.arange(4).to("tpu")
    accumulated = torch.zeros(8, 8).to("tpu")
    made: tuple[Call, ...] = (
        lambda: x + y, lambda: x - 1.5, lambda: x * y, lambda: x / y, lambda: x.pow(2.0),
        lambda: -x, x.exp, x.sqrt, x.rsqrt, x.tanh, x.sigmoid, lambda: functional.relu(x),
        lambda: functional.gelu(x), lambda: functional.silu(x), lambda: accumulated.add_(y),
        lambda: x == y, lambda: torch.where(mask, x, y), lambda: x.masked_fill(mask, 0.0),
        x.sum, lambda: x.mean(-1), lambda: x.amax(-1), lambda: x.argmax(-1),
        lambda: x.softmax(-1), lambda: functional.layer_norm(x, (8,), weight, bias),
        lambda: torch.mm(x, y), lambda: torch.bmm(batched, batched), lambda: torch.cat((x, y)),
        x.clone, lambda: x.to(torch.bfloat16), lambda: functional.embedding(indices, x),
    )  # fmt: skip
    return dict(zip(OPS, made, strict=True))


class OpCalls:
    """Runs units of one op; the variant names it."""

    def __init__(self, fence: Callable[[], None]) -> None:
        self.fence = fence
        self.calls = calls()

    def run(self, count: int, variant: str) -> tuple[list[int], list[float]]:
        """Times of `count` units of an op. The variant "plain" runs all of them a little, and
        shows the sums of the results as evidence."""
        if variant == "plain":
            return self._every_op()
        call = self.calls[variant]
        times = []
        for _ in range(count):
            start = _clock()
            for _ in range(CALLS):
                call()
            self.fence()
            times.append(_clock() - start)
        return times, []

    def _every_op(self) -> tuple[list[int], list[float]]:
        sums = [float(call().float().sum().cpu()) for call in self.calls.values()]
        start = _clock()
        for call in self.calls.values():
            for _ in range(CALLS):
                call()
            self.fence()
        return [(_clock() - start) // len(self.calls)], [sum(sums[i::8]) for i in range(8)]
