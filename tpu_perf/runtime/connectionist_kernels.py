"""Kernels of ctc_loss that take lengths as tensors, so that one program serves all lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tpu_perf.runtime.aten_kernels import by_hand_in, table_kernel

Tensor = torch.Tensor
BY_HAND: dict[str, Callable[..., Any]] = {}
by_hand = by_hand_in(BY_HAND)


@by_hand("_ctc_loss")
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    _check_ctc(log_probs, targets, input_lengths, target_lengths, blank)
    rows = _padded_targets(targets, target_lengths)
    steps = torch.tensor(list(input_lengths), device=log_probs.device)
    counts = torch.tensor(list(target_lengths), device=log_probs.device)
    made: tuple[Tensor, Tensor] = table_kernel("_ctc_loss.Tensor")(
        log_probs, rows, steps, counts, blank, zero_infinity
    )
    return made


@by_hand("_ctc_loss.Tensor")
def ctc_loss_of_tensors(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor,
    blank: int = 0, zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return ctc_loss(log_probs, targets, input_lengths.tolist(), target_lengths.tolist(), blank,
                    zero_infinity)  # fmt: skip


@by_hand("_ctc_loss_backward")
def ctc_loss_backward(
    grad: Tensor, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any,
    neg_log_likelihood: Tensor, log_alpha: Tensor, blank: int, zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    steps = torch.tensor(list(input_lengths), device=log_probs.device)
    counts = torch.tensor(list(target_lengths), device=log_probs.device)
    made: Tensor = table_kernel("_ctc_loss_backward.Tensor")(
        grad, log_probs, _padded_targets(targets, target_lengths), steps, counts,
        neg_log_likelihood, log_alpha, blank, zero_infinity,
    )  # fmt: skip
    return made


@by_hand("_ctc_loss_backward.Tensor")
def ctc_loss_backward_of_tensors(
    grad: Tensor, log_probs: Tensor, targets: Tensor, input_lengths: Tensor,
    target_lengths: Tensor, neg_log_likelihood: Tensor, log_alpha: Tensor, blank: int,
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    return ctc_loss_backward(
        grad, log_probs, targets, input_lengths.tolist(), target_lengths.tolist(),
        neg_log_likelihood, log_alpha, blank, zero_infinity,
    )  # fmt: skip


def _check_ctc(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int
) -> None:
    time, batch, classes = log_probs.shape
    if targets.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"ctc_loss: targets must be int32 or int64, not {targets.dtype}")
    if not 0 <= blank < classes:
        raise RuntimeError("blank must be in label range")
    for name, lengths in (("input", input_lengths), ("target", target_lengths)):
        if len(lengths) != batch:
            raise RuntimeError(f"{name}_lengths must be of size batch_size")
        if any(n < 0 for n in lengths):
            raise RuntimeError(f"{name}_lengths must not be negative")
    if any(n > time for n in input_lengths):
        raise RuntimeError(
            f"Expected input_lengths to have value at most {time}, but got {max(input_lengths)}"
        )


def _padded_targets(targets: Tensor, lengths: Any) -> Tensor:
    """One row a batch element: targets given in one piece are cut into rows."""
    longest = max(lengths, default=0)
    if targets.dim() == 2:
        if targets.shape[1] < longest:
            raise RuntimeError(
                f"Expected tensor to have size at least {longest} at dimension 1, but got size "
                f"{targets.shape[1]}"
            )
        return targets
    if targets.numel() < sum(lengths):
        raise RuntimeError(
            f"Expected {sum(lengths)} targets in one dimension, but got {targets.numel()}"
        )
    places, start = [], 0
    last = max(targets.numel() - 1, 0)
    for n in lengths:
        places.append([min(start + i, last) for i in range(longest)])
        start += n
    if not longest:
        return targets.new_empty((len(lengths), 0))
    return targets[torch.tensor(places, device=targets.device)]
