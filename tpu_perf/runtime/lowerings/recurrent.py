"""The fused cell of an LSTM and its gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings.precision import cast, wide
from tpu_perf.runtime.lowerings.registry import Call, lowers

Maybe = jax.Array | None


@lowers("_thnn_fused_lstm_cell")
def lstm_cell(
    call: Call,
    input_gates: jax.Array,
    hidden_gates: jax.Array,
    cx: jax.Array,
    input_bias: Maybe = None,
    hidden_bias: Maybe = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(hidden state, cell state, workspace); the workspace holds the opened gates."""
    gates = wide(input_gates) + wide(hidden_gates)
    for bias in (input_bias, hidden_bias):
        if bias is not None:
            gates = gates + cast(bias, gates.dtype)
    enter, forget, cell, leave = jnp.split(gates, 4, axis=1)
    enter, forget, leave = (lax.logistic(g) for g in (enter, forget, leave))
    cell = jnp.tanh(cell)
    state = forget * wide(cx) + enter * cell
    workspace = jnp.concatenate([enter, forget, cell, leave], axis=1)
    return leave * jnp.tanh(state), state, workspace


@lowers("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    call: Call,
    grad_hy: Maybe,
    grad_cy: Maybe,
    cx: jax.Array,
    cy: jax.Array,
    workspace: jax.Array,
    has_bias: bool,
) -> tuple[Maybe, Maybe, Maybe]:
    """Gradients of the gates, the previous cell state and the bias."""
    enter, forget, cell, leave = jnp.split(wide(workspace), 4, axis=1)
    seen = jnp.tanh(wide(cy))
    out = jnp.zeros_like(seen) if grad_hy is None else wide(grad_hy)
    state = out * leave * (1 - seen * seen)
    if grad_cy is not None:
        state = state + wide(grad_cy)
    grad_gates = jnp.concatenate(
        [
            state * cell * enter * (1 - enter),
            state * wide(cx) * forget * (1 - forget),
            state * enter * (1 - cell * cell),
            out * seen * leave * (1 - leave),
        ],
        axis=1,
    )
    return grad_gates, state * forget, jnp.sum(grad_gates, axis=0) if has_bias else None
