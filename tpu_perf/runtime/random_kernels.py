"""Kernels of random ops that look at their input first, as torch does on every device."""

from __future__ import annotations

import math
from typing import Any

import torch

from tpu_perf.runtime.aten_kernels import by_hand, table_kernel
from tpu_perf.runtime.modes import STATE

Tensor = torch.Tensor
#: Above this many categories float32 no longer tells them apart.
_MOST_CATEGORIES = 1 << 24


@by_hand("multinomial")
def multinomial(
    self: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> Tensor:
    _check_odds(self, num_samples, replacement)
    drawn: Tensor = table_kernel("multinomial")(self, num_samples, replacement, generator=generator)
    return drawn


@by_hand("multinomial.out")
def multinomial_out(
    self: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None, out: Tensor
) -> Tensor:
    if out.dtype is not torch.int64:
        raise RuntimeError(f"multinomial expects Long tensor out, got: {out.dtype}")
    drawn = multinomial(self, num_samples, replacement, generator=generator)
    return out.resize_(drawn.shape).copy_(drawn)


def _check_odds(odds: Tensor, num_samples: int, replacement: bool) -> None:
    """Raises RuntimeError where torch does. The values are read, except while a whole step is
    captured."""
    if odds.dim() not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    categories = odds.shape[-1]
    problems = {
        f"multinomial only supports floating-point dtypes for input, got: {odds.dtype}":
            not odds.is_floating_point(),
        "cannot sample n_sample <= 0 samples": num_samples <= 0,
        "cannot sample n_sample > prob_dist.size(-1) samples without replacement":
            not replacement and num_samples > categories,
        "number of categories cannot exceed 2^24": categories > _MOST_CATEGORIES,
    }  # fmt: skip
    for problem, found in problems.items():
        if found:
            raise RuntimeError(problem)
    if STATE.capturing or not odds.numel():
        return
    lowest, highest, least = torch.stack(
        [odds.min(), odds.max(), odds.sum(-1).min()]
    ).tolist()  # fmt: skip
    if not (lowest >= 0 and highest < math.inf):
        raise RuntimeError(
            "invalid multinomial distribution: probability tensor contains either `inf`, `nan` or "
            "element < 0"
        )
    if least <= 0:
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
