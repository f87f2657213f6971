"""Compute one op on the host, when the user allowed it: copied over, run by torch, sent back."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import torch

from tpu_perf.recorder import active
from tpu_perf.runtime.signatures import Signature
from tpu_perf.runtime.transfers import to_host

#: How often each op was computed on the host in this process.
USES: Counter[str] = Counter()


def run_on_host(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op with torch on the CPU; written arguments are written back."""
    start = time.perf_counter_ns()
    moved: list[tuple[torch.Tensor, torch.Tensor]] = []

    def bring(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "tpu":
            host = to_host(value, "unknown")
            moved.append((value, host))
            return host
        if isinstance(value, torch.device) and value.type == "tpu":
            return torch.device("cpu")
        return value

    host_args, host_kwargs = torch.utils._pytree.tree_map(bring, (args, kwargs))
    result = signature.op(*host_args, **host_kwargs)
    by_host = {id(host): device for device, host in moved}
    if signature.mutable:
        for device, host in moved:
            if device.shape != host.shape:
                device.resize_(host.shape)
            device.copy_(host)

    def send(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return by_host.get(id(value)) if id(value) in by_host else value.to("tpu")
        return value

    sent = torch.utils._pytree.tree_map(send, result)
    USES[signature.display] += 1
    recorder = active.recorder
    if recorder is not None:
        recorder.fallback((start, time.perf_counter_ns(), signature.display, recorder.step))
    return sent


def uses_note() -> str | None:
    """What was computed on the host so far, for a run's notes; None if nothing was."""
    if not USES:
        return None
    used = ", ".join(f"{op} x{count}" for op, count in USES.most_common())
    return f"computed by torch on the host: {used}"
