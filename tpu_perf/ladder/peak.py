"""The FLOP/s that MFU refers to: a measured GEMM on a CPU, the chip table on a TPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tpu_perf.chips import find_chip
from tpu_perf.record.plan import Precision

#: Large enough to be compute-bound on a few cores, small enough to repeat.
_SIZE = 2048
_BUDGET_S = 1.0
_DTYPES: dict[Precision, str] = {"float32": "float32", "bf16_autocast": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """FLOP/s with its source in words; provenance as in record.metric."""

    flops_per_s: float
    source: str
    provenance: Literal["measured", "assumed"]


def measure_peak(precision: Precision, size: int = _SIZE) -> Peak:
    """The fastest repetition of a square GEMM in this dtype, over torch and XLA on the CPU."""
    dtype = _DTYPES[precision]
    flops = 2.0 * size**3
    best: dict[str, float] = {}
    for name, build in (("torch", _torch_gemm), ("XLA:CPU", _xla_gemm)):
        run = build(dtype, size)
        if run is not None:
            best[name] = flops / _fastest_s(run)
    winner = max(best, key=lambda name: best[name])
    others = ", ".join(f"{name} {value / 1e9:.0f}" for name, value in sorted(best.items()))
    return Peak(
        flops_per_s=best[winner],
        source=f"fastest {size}x{size}x{size} {dtype} GEMM measured on this CPU, by {winner} "
        f"(GFLOP/s: {others})",
        provenance="measured",
    )


def chip_peak(device_kind: str, precision: Precision) -> Peak | None:
    """The datasheet peak of one device of this kind, None if the table has none."""
    chip = find_chip(device_kind)
    if chip is None or precision != "bf16_autocast":
        return None  # no datasheet gives a float32 peak
    return Peak(
        flops_per_s=chip.bf16_flops_per_s / chip.devices_per_chip,
        source=f"{chip.name} datasheet, bf16 ({chip.source})",
        provenance="assumed",
    )


def _torch_gemm(dtype: str, size: int) -> Callable[[], object]:
    import torch

    a = torch.randn(size, size).to(getattr(torch, dtype))
    b = torch.randn(size, size).to(getattr(torch, dtype))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _xla_gemm(dtype: str, size: int) -> Callable[[], object] | None:
    os.environ["JAX_PLATFORMS"] = "cpu"  # this process measures the host, never a TPU
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return None
    keys = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (size, size)).astype(getattr(jnp, dtype)) for key in keys)
    multiply = jax.jit(jnp.matmul)
    return lambda: multiply(a, b).block_until_ready()


def _fastest_s(run: Callable[[], object]) -> float:
    """The shortest of the repetitions that the time budget allows, after a warm-up."""
    run()
    start = time.perf_counter()
    times: list[float] = []
    while not times or (time.perf_counter() - start < _BUDGET_S and len(times) < 30):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)
