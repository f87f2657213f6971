"""The same model and AdamW written by hand in JAX: one jit, state donated, device batches.

Weights are kept as JAX code keeps them, (in, out) with heads as an axis of their own.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tests.benchmarks import sizes
from tests.benchmarks.sizes import Size

Tree = Any


class State(NamedTuple):
    """Everything a step updates."""

    parameters: Tree
    first_moment: Tree
    second_moment: Tree
    step: jax.Array


def initial_state(size: Size) -> State:
    """The benchmark's initial parameters as a JAX pytree, with zero moments."""
    start = sizes.initial_parameters(size)
    width, heads = size.width, size.heads

    def split(name: str) -> jax.Array:
        return jnp.asarray(start[name].T.reshape(width, heads, width // heads))

    def block(layer: int) -> dict[str, jax.Array]:
        at = f"blocks.{layer}."
        return {
            "norm1": jnp.asarray(start[f"{at}norm1.weight"]),
            "query": split(f"{at}query.weight"),
            "key": split(f"{at}key.weight"),
            "value": split(f"{at}value.weight"),
            "out": jnp.asarray(start[f"{at}out.weight"].T.reshape(heads, width // heads, width)),
            "norm2": jnp.asarray(start[f"{at}norm2.weight"]),
            "gate": jnp.asarray(start[f"{at}gate.weight"].T),
            "up": jnp.asarray(start[f"{at}up.weight"].T),
            "down": jnp.asarray(start[f"{at}down.weight"].T),
        }

    parameters = {
        "embed": jnp.asarray(start["embed.weight"]),
        "position": jnp.asarray(start["position.weight"]),
        "blocks": [block(layer) for layer in range(size.layers)],
        "norm": jnp.asarray(start["norm.weight"]),
        "head": jnp.asarray(start["head.weight"].T),
    }
    # Two calls: donated moments must not share their zeros.
    first, second = (jax.tree.map(jnp.zeros_like, parameters) for _ in range(2))
    return State(parameters, first, second, jnp.zeros((), jnp.int32))


def device_batches(size: Size) -> list[tuple[jax.Array, jax.Array]]:
    """(tokens, targets) pairs on the device."""
    return [
        (jax.device_put(tokens[:, :-1]), jax.device_put(tokens[:, 1:]))
        for tokens in sizes.token_batches(size)
    ]


def _norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(mean_square + sizes.NORM_EPSILON) * weight


def _attention(x: jax.Array, p: Tree) -> jax.Array:
    query = jnp.einsum("btd,dhk->bhtk", x, p["query"])
    key = jnp.einsum("btd,dhk->bhtk", x, p["key"])
    value = jnp.einsum("btd,dhk->bhtk", x, p["value"])
    scores = jnp.einsum("bhtk,bhsk->bhts", query, key) * query.shape[-1] ** -0.5
    length = x.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    attended = jnp.einsum("bhts,bhsk->bhtk", weights, value)
    return jnp.einsum("bhtk,hkd->btd", attended, p["out"])


def _mlp(x: jax.Array, p: Tree) -> jax.Array:
    hidden: jax.Array = jax.nn.silu(x @ p["gate"]) * (x @ p["up"])
    return jnp.einsum("btf,fd->btd", hidden, p["down"])


def loss_of(parameters: Tree, tokens: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean cross entropy."""
    x = parameters["embed"][tokens] + parameters["position"]
    for p in parameters["blocks"]:
        x = x + _attention(_norm(x, p["norm1"]), p)
        x = x + _mlp(_norm(x, p["norm2"]), p)
    logits = _norm(x, parameters["norm"]) @ parameters["head"]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)
    return -jnp.mean(picked)


@partial(jax.jit, donate_argnums=0)
def train_step(state: State, tokens: jax.Array, targets: jax.Array) -> tuple[State, jax.Array]:
    """One step of AdamW as torch defines it."""
    loss, gradients = jax.value_and_grad(loss_of)(state.parameters, tokens, targets)
    step = state.step + 1
    correction1 = 1 - sizes.BETA1 ** step.astype(jnp.float32)
    correction2 = 1 - sizes.BETA2 ** step.astype(jnp.float32)
    first = jax.tree.map(
        lambda m, g: sizes.BETA1 * m + (1 - sizes.BETA1) * g, state.first_moment, gradients
    )
    second = jax.tree.map(
        lambda v, g: sizes.BETA2 * v + (1 - sizes.BETA2) * jnp.square(g),
        state.second_moment,
        gradients,
    )

    def update(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        denominator = jnp.sqrt(v / correction2) + sizes.EPSILON
        decayed = p * (1 - sizes.LEARNING_RATE * sizes.WEIGHT_DECAY)
        return decayed - sizes.LEARNING_RATE * (m / correction1) / denominator

    parameters = jax.tree.map(update, state.parameters, first, second)
    return State(parameters, first, second, step), loss
