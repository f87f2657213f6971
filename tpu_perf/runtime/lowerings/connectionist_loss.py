"""Connectionist temporal classification: the likelihood of labels over all their alignments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tpu_perf.runtime.lowerings.precision import cast, wide
from tpu_perf.runtime.lowerings.registry import Call, lowers


class _Alignment(NamedTuple):
    """What both passes over time need. Labels lie between blanks: blank, l1, blank, l2, ..."""

    scores: jax.Array  # (time, batch, places): log probability of each place's label
    labels: jax.Array  # (batch, places)
    skips: jax.Array  # (batch, places): whether it may follow the place two before
    steps: jax.Array  # (batch,)
    last: jax.Array  # (batch,): the last place, a blank


def _alignment(
    log_probs: jax.Array, targets: jax.Array, steps: jax.Array, counts: jax.Array, blank: int
) -> _Alignment:
    time, batch, _ = log_probs.shape
    longest = targets.shape[1]
    labels = jnp.full((batch, 2 * longest + 1), blank, jnp.int32)
    labels = labels.at[:, 1::2].set(targets.astype(jnp.int32))
    places = jnp.arange(labels.shape[1])
    two_before = jnp.pad(labels, ((0, 0), (2, 0)))[:, : labels.shape[1]]
    skips = (places >= 3) & (places % 2 == 1) & (labels != two_before)
    index = jnp.broadcast_to(labels, (time, *labels.shape))
    scores = jnp.take_along_axis(log_probs, index, axis=-1, mode="clip")
    return _Alignment(scores, labels, skips, steps.astype(jnp.int32), 2 * counts.astype(jnp.int32))


def _log_sum(*terms: jax.Array) -> jax.Array:
    top = jnp.maximum(terms[0], terms[1])
    for term in terms[2:]:
        top = jnp.maximum(top, term)
    base = jnp.where(jnp.isfinite(top), top, 0)
    total = jnp.zeros((), top.dtype)
    for term in terms:
        total = total + jnp.exp(term - base)
    return jnp.log(total) + base


def _shift(x: jax.Array, by: int) -> jax.Array:
    """x moved along its last dim, -inf where nothing comes in."""
    if by > 0:
        return jnp.pad(x, ((0, 0), (by, 0)), constant_values=-jnp.inf)[:, : x.shape[1]]
    return jnp.pad(x, ((0, 0), (0, -by)), constant_values=-jnp.inf)[:, -by:]


def _forward(a: _Alignment) -> jax.Array:
    """(time, batch, places): likelihood of all beginnings of alignments that end there."""
    none = jnp.asarray(-jnp.inf, a.scores.dtype)
    places = jnp.arange(a.labels.shape[1])
    first = jnp.where((places < 2) & (places <= a.last[:, None]), a.scores[0], none)

    def step(before: jax.Array, score: jax.Array) -> tuple[jax.Array, jax.Array]:
        skipped = jnp.where(a.skips, _shift(before, 2), none)
        now = _log_sum(before, _shift(before, 1), skipped) + score
        return now, now

    _, rest = lax.scan(step, first, a.scores[1:])
    return jnp.concatenate([first[None], rest])


def _backward(a: _Alignment) -> jax.Array:
    """(time, batch, places): likelihood of all ends of alignments that begin there."""
    none = jnp.asarray(-jnp.inf, a.scores.dtype)
    places = jnp.arange(a.labels.shape[1])
    ends = (places <= a.last[:, None]) & (places >= a.last[:, None] - 1)
    skips = jnp.pad(a.skips, ((0, 0), (0, 2)))[:, 2:]  # whether the place two on may follow
    times = jnp.arange(a.scores.shape[0])

    def step(after: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        time, score = now
        skipped = jnp.where(skips, _shift(after, -2), none)
        inner = _log_sum(after, _shift(after, -1), skipped) + score
        started = jnp.where(ends, score, none)
        here = jnp.where((time == a.steps - 1)[:, None], started, inner)
        return here, here

    start = jnp.full(a.labels.shape, none)
    return lax.scan(step, start, (times, a.scores), reverse=True)[1]


def _loss(a: _Alignment, alpha: jax.Array) -> jax.Array:
    final = jnp.clip(a.steps - 1, 0, alpha.shape[0] - 1)
    at_end = jnp.take_along_axis(alpha, final[None, :, None], axis=0)[0]
    whole = jnp.take_along_axis(at_end, a.last[:, None], axis=1)[:, 0]
    short = jnp.take_along_axis(at_end, jnp.maximum(a.last - 1, 0)[:, None], axis=1)[:, 0]
    short = jnp.where(a.last > 0, short, -jnp.inf)
    loss = -_log_sum(whole, short)
    return jnp.where(a.steps == 0, jnp.where(a.last == 0, 0, jnp.inf), loss)


def _rows(targets: jax.Array, lengths: Sequence[int]) -> jax.Array:
    """Targets given in one piece as one row a batch element."""
    if targets.ndim == 2:
        return targets
    longest = max(lengths, default=0)
    starts = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])[: len(lengths)]
    places = starts[:, None] + np.arange(longest)
    return jnp.take(targets, jnp.asarray(places), mode="clip") if targets.size else jnp.zeros(
        places.shape, targets.dtype
    )  # fmt: skip


@lowers("_ctc_loss")
def ctc_loss_in_graph(
    call: Call,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Lengths are part of a graph, where they are not tensors."""
    rows = _rows(targets, target_lengths)
    steps, counts = (jnp.asarray(list(n), jnp.int32) for n in (input_lengths, target_lengths))
    loss, alpha = ctc_loss(call, log_probs, rows, steps, counts, blank, zero_infinity)
    return loss, alpha[..., : call.out[1].shape[-1]]


@lowers("_ctc_loss_backward")
def ctc_loss_backward_in_graph(
    call: Call,
    grad: jax.Array,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: jax.Array,
    log_alpha: jax.Array,
    blank: int,
    zero_infinity: bool = False,
) -> jax.Array:
    rows = _rows(targets, target_lengths)[:, : (log_alpha.shape[-1] - 1) // 2]
    steps, counts = (jnp.asarray(list(n), jnp.int32) for n in (input_lengths, target_lengths))
    return ctc_loss_backward(call, grad, log_probs, rows, steps, counts, neg_log_likelihood,
                             log_alpha, blank, zero_infinity)  # fmt: skip


@lowers("_ctc_loss.Tensor")
def ctc_loss(
    call: Call,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[jax.Array, jax.Array]:
    a = _alignment(wide(log_probs), targets, input_lengths, target_lengths, blank)
    alpha = _forward(a)
    return _loss(a, alpha), jnp.swapaxes(alpha, 0, 1)


@lowers("_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    call: Call,
    grad: jax.Array,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    neg_log_likelihood: jax.Array,
    log_alpha: jax.Array,
    blank: int,
    zero_infinity: bool = False,
) -> jax.Array:
    """As torch's: the gradient of the loss composed with a log-softmax."""
    scores = wide(log_probs)
    a = _alignment(scores, targets, input_lengths, target_lengths, blank)
    alpha = jnp.swapaxes(cast(log_alpha, scores.dtype), 0, 1)
    loss = cast(neg_log_likelihood, scores.dtype)
    joint = alpha + _backward(a)
    share = jnp.exp(joint - a.scores + loss[:, None])
    # A place nothing passes through has no share, unless nothing passes anywhere (NaN, as torch).
    share = jnp.where(jnp.isneginf(joint) & jnp.isfinite(loss)[:, None], 0, share)
    classes = jnp.arange(scores.shape[2], dtype=jnp.int32)
    owner = (a.labels[:, :, None] == classes).astype(scores.dtype)
    posterior = jnp.einsum("tbp,bpc->tbc", share, owner, precision=lax.Precision.HIGHEST)
    made = (jnp.exp(scores) - posterior) * cast(grad, scores.dtype)[:, None]
    running = jnp.arange(scores.shape[0])[:, None] < a.steps
    if zero_infinity:
        running = running & ~jnp.isposinf(loss)
    return jnp.where(running[:, :, None], made, 0)
