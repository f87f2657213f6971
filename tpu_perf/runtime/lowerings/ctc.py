"""Connectionist temporal classification: the loss over all alignments, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings.precision import wide
from tpu_perf.runtime.lowerings.registry import Call, lowers

#: Stands for log(0) within the recursion: its exponential is zero, its gradient no NaN.
_NEVER = -1e30
Lengths = Sequence[int] | jax.Array


def _extended(targets: jax.Array, lengths: jax.Array, longest: int, blank: int) -> jax.Array:
    """Targets with blanks between, [batch, 2 * longest + 1]; concatenated targets are unpacked."""
    batch = lengths.shape[0]
    if targets.ndim == 1:
        starts = jnp.cumsum(lengths) - lengths
        places = starts[:, None] + jnp.arange(longest)
        targets = jnp.take(targets, jnp.minimum(places, max(0, targets.size - 1)))
    extended = jnp.full((batch, 2 * longest + 1), blank, targets.dtype)
    return extended.at[:, 1::2].set(targets[:, :longest]) if longest else extended


def _alphas(
    log_probs: jax.Array, targets: jax.Array, lengths: jax.Array, longest: int, blank: int
) -> jax.Array:
    """Log-probability of each prefix of the extended targets, [time, batch, 2 * longest + 1]."""
    labels = _extended(targets, lengths, longest, blank)
    seen = jnp.take_along_axis(
        log_probs, jnp.broadcast_to(labels, (log_probs.shape[0], *labels.shape)), axis=2
    )
    batch, states = labels.shape
    skips = jnp.zeros((batch, states), bool)
    if states > 2:
        skips = skips.at[:, 2:].set((labels[:, 2:] != labels[:, :-2]) & (labels[:, 2:] != blank))
    begins = jnp.arange(states)[None, :] <= jnp.minimum(lengths[:, None], 1)
    first = jnp.where(begins, seen[0], _NEVER)

    def shifted(alpha: jax.Array, by: int) -> jax.Array:
        edge = jnp.full((batch, min(by, states)), _NEVER, alpha.dtype)
        return jnp.concatenate([edge, alpha[:, : states - by]], axis=1) if states > by else edge

    def step(alpha: jax.Array, here: jax.Array) -> tuple[jax.Array, jax.Array]:
        ways = jnp.stack([alpha, shifted(alpha, 1), jnp.where(skips, shifted(alpha, 2), _NEVER)])
        new = jnp.maximum(jax.nn.logsumexp(ways, axis=0) + here, _NEVER)
        return new, new

    _, later = lax.scan(step, first, seen[1:])
    return jnp.concatenate([first[None], later])


def _losses(alphas: jax.Array, input_lengths: jax.Array, target_lengths: jax.Array) -> jax.Array:
    """Negative log-likelihood of each sample."""
    samples = jnp.arange(alphas.shape[1])
    last = alphas[jnp.maximum(input_lengths - 1, 0), samples]
    ends = last[samples, 2 * target_lengths]
    before = last[samples, jnp.maximum(2 * target_lengths - 1, 0)]
    both = jax.nn.logsumexp(
        jnp.stack([ends, jnp.where(target_lengths > 0, before, _NEVER)]), axis=0
    )
    empty = jnp.where(target_lengths == 0, 0.0, -_NEVER)
    return jnp.where(input_lengths == 0, empty, -both)


def _lengths(given: Lengths) -> jax.Array:
    return jnp.asarray(given, jnp.int32).reshape(-1)


def _as_infinite(losses: jax.Array) -> jax.Array:
    return jnp.where(losses >= -_NEVER / 2, jnp.inf, losses)


@lowers("_ctc_loss", "_ctc_loss.Tensor")
def ctc_loss(
    call: Call,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """(loss of each sample, the alphas that the gradient may use). Torch's caller puts zero for an
    infinite loss."""
    squeezed = log_probs.ndim == 2
    probs = wide(log_probs[:, None] if squeezed else log_probs)
    inputs, lengths = _lengths(input_lengths), _lengths(target_lengths)
    longest = (call.out[1].shape[-1] - 1) // 2
    alphas = _alphas(probs, targets, lengths, longest, blank)
    losses = _as_infinite(_losses(alphas, inputs, lengths))
    shown = jnp.where(alphas <= _NEVER / 2, -jnp.inf, alphas).transpose(1, 0, 2)
    return (losses[0], shown[0]) if squeezed else (losses, shown)


@lowers("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    call: Call,
    grad: jax.Array,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: Lengths,
    target_lengths: Lengths,
    neg_log_likelihood: jax.Array,
    log_alpha: jax.Array,
    blank: int,
    zero_infinity: bool = False,
) -> jax.Array:
    """Torch's gradient takes log_probs to come from a log_softmax: probabilities minus how often
    the alignments pass through each class, zero past a sample's end."""
    squeezed = log_probs.ndim == 2
    probs: Any = wide(log_probs[:, None] if squeezed else log_probs)
    inputs, lengths = _lengths(input_lengths), _lengths(target_lengths)
    longest = (log_alpha.shape[-1] - 1) // 2

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(_losses(_alphas(values, targets, lengths, longest, blank), inputs, lengths))

    passes = jax.grad(total)(probs)
    past = jnp.arange(probs.shape[0])[:, None, None] >= inputs[None, :, None]
    losses = neg_log_likelihood.reshape(-1)
    made = (jnp.exp(probs) + passes) * wide(grad).reshape(-1)[None, :, None]
    impossible = jnp.isinf(losses)[None, :, None]
    made = jnp.where(impossible, 0.0 if zero_infinity else jnp.nan, made)
    made = jnp.where(past, 0.0, made)
    return made[:, 0] if squeezed else made
