"""A dense decoder's training step in plain JAX, as the published recipes run it, lowered for a TPU.

It stands in for abstract execution of torch models: FSDP over all devices, scan over layers,
bf16 compute with float32 master weights, AdamW, causal splash attention, rematerialisation by
lists of saved and offloaded names. Nothing is ever allocated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

#: Names a recipe may save, offload or (by leaving them out) recompute.
NAMES = ("layer_input", "q", "k", "v", "context", "out")


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseStep:
    """Dimensions of a model, and how its recipe trains it. `batch` is of one device.

    `gated` is the feed-forward of three matrices (SwiGLU), else two.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    feed_forward: int
    vocabulary: int
    sequence: int
    batch: int
    gated: bool = True
    save: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    one_hot_embedding: bool = True
    block_q: int = 2048
    block_kv: int = 2048

    @property
    def tokens(self) -> int:
        """Of one device and step."""
        return self.sequence * self.batch

    def matmul_parameters(self) -> int:
        """Parameters that multiply every token: all but the embedding and the norms."""
        attention = self.width * self.head_width * (2 * self.heads + 2 * self.kv_heads)
        feed_forward = (3 if self.gated else 2) * self.width * self.feed_forward
        return self.layers * (attention + feed_forward) + self.width * self.vocabulary

    def dot_flops(self) -> float:
        """Matrix multiplications of one device and step that are no attention, as compiled:
        forward, backward, recomputation and the one-hot embedding."""
        parameters = self.matmul_parameters()
        flops = 6.0 * parameters
        if self.one_hot_embedding:
            flops += 4.0 * self.width * self.vocabulary
        kept = {*self.save, *self.offload}
        inner = self.head_width
        again = (2 if self.gated else 1) * self.width * self.feed_forward
        again += 0 if "q" in kept else self.width * self.heads * inner
        again += sum(0 if name in kept else self.width * self.kv_heads * inner for name in "kv")
        again += 0 if "out" in kept else self.width * self.heads * inner
        return self.tokens * (flops + 2.0 * self.layers * again)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the parameters of one layer; the second-last name is sharded."""
        inner = self.head_width
        found = {
            "q": (self.width, self.heads, inner),
            "k": (self.width, self.kv_heads, inner),
            "v": (self.width, self.kv_heads, inner),
            "o": (self.heads, inner, self.width),
            "up": (self.width, self.feed_forward),
            "down": (self.feed_forward, self.width),
            "norm1": (self.width,),
            "norm2": (self.width,),
        }
        return {**found, "gate": (self.width, self.feed_forward)} if self.gated else found


def lower(step: DenseStep, devices: Sequence[Any]) -> bytes:
    """StableHLO of one training step over these (described) devices."""
    mesh = Mesh(np.array(devices), ("fsdp",))

    def placed(shape: Sequence[int], spec: P, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=NamedSharding(mesh, spec))

    specs = {name: _spec(name) for name in step.shapes()}
    layers = {
        name: placed((step.layers, *shape), P(None, *specs[name]))
        for name, shape in step.shapes().items()
    }
    table = (step.vocabulary, step.width)
    parameters = {
        "layers": layers,
        "embedding": placed(table, P(None, "fsdp")),
        "head": placed(table[::-1], P("fsdp", None)),
        "norm": placed((step.width,), P(None)),
    }
    batch = placed((len(devices) * step.batch, step.sequence), P("fsdp", None), jnp.int32)
    count = placed((), P(), jnp.int32)
    shardings = jax.tree.map(lambda one: one.sharding, parameters)
    train = jax.jit(
        partial(_train, step, mesh),
        donate_argnums=(0, 1, 2, 3),
        out_shardings=(shardings, shardings, shardings, count.sharding, None),
    )
    # Kernels carry their callers' lines: without them equal steps are equal programs.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    lowered = train.trace(parameters, parameters, parameters, count, batch, batch).lower(
        lowering_platforms=("tpu",)
    )
    return str(lowered.compiler_ir("stablehlo")).encode()


def _spec(name: str) -> P:
    if name.startswith("norm"):
        return P(None)
    if name == "o":
        return P(None, None, "fsdp")
    return P(None, "fsdp") if name == "down" else P("fsdp")


def _train(
    step: DenseStep, mesh: Mesh, weights: Any, first: Any, second: Any, count: Any,
    tokens: Any, targets: Any,
) -> Any:  # fmt: skip
    """AdamW with gradients clipped to a global norm of 1."""
    loss, gradients = jax.value_and_grad(partial(_loss, step, mesh))(weights, tokens, targets)
    norm = jnp.sqrt(sum(jnp.sum(one * one) for one in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda one: one / jnp.maximum(norm, 1.0), gradients)
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, second, gradients)

    def updated(w: Any, m: Any, v: Any) -> Any:
        m, v = m / (1 - 0.9**count), v / (1 - 0.95**count)
        return w - 3e-5 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * w)

    return jax.tree.map(updated, weights, first, second), first, second, count, loss


def _loss(step: DenseStep, mesh: Mesh, weights: Any, tokens: Any, targets: Any) -> Any:
    table = weights["embedding"].astype(jnp.bfloat16)
    if step.one_hot_embedding:
        x = jax.nn.one_hot(tokens, step.vocabulary, dtype=jnp.bfloat16) @ table
    else:
        x = table[tokens]
    activations = NamedSharding(mesh, P("fsdp", None, None))
    x = lax.with_sharding_constraint(x, activations)
    attention = _attention(step, mesh)

    def layer(x: Any, own: Any) -> tuple[Any, None]:
        x = lax.with_sharding_constraint(_layer(step, attention, x, own), activations)
        return x, None

    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=list(step.save),
        names_which_can_be_offloaded=list(step.offload),
        offload_src="device",
        offload_dst="pinned_host",
    )
    x, _ = lax.scan(jax.checkpoint(layer, policy=policy, prevent_cse=False), x, weights["layers"])
    logits = _norm(x, weights["norm"]) @ weights["head"].astype(jnp.bfloat16)
    return _cross_entropy(logits.astype(jnp.float32), targets)


def _cross_entropy(logits: Any, targets: Any) -> Any:
    hot = jax.nn.one_hot(targets, logits.shape[-1], dtype=logits.dtype)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - jnp.sum(logits * hot, axis=-1))


def _layer(step: DenseStep, attention: Any, x: Any, own: Any) -> Any:
    weights = {name: one.astype(jnp.bfloat16) for name, one in own.items()}
    x = checkpoint_name(x, "layer_input")
    normed = _norm(x, weights["norm1"])
    q, k, v = (
        checkpoint_name(one, name)
        for name, one in (
            (name, jnp.einsum("bse,ehd->bshd", normed, weights[name])) for name in "qkv"
        )
    )
    q, k = _rotate(q), _rotate(k)
    context = checkpoint_name(attention(q / math.sqrt(step.head_width), k, v), "context")
    x = x + checkpoint_name(jnp.einsum("bshd,hde->bse", context, weights["o"]), "out")
    normed = _norm(x, weights["norm2"])
    up = normed @ weights["up"]
    up = jax.nn.silu(normed @ weights["gate"]) * up if step.gated else jax.nn.gelu(up)
    return x + up @ weights["down"]


def _norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)
    return wide.astype(jnp.bfloat16) * scale.astype(jnp.bfloat16)


def _rotate(x: Any) -> Any:
    """Rotary positions."""
    half = x.shape[-1] // 2
    rates = 500000.0 ** -(jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * rates
    sine, cosine = jnp.sin(angles)[None, :, None], jnp.cos(angles)[None, :, None]
    one, two = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate((one * cosine - two * sine, two * cosine + one * sine), axis=-1)
    return turned.astype(jnp.bfloat16)


def _attention(step: DenseStep, mesh: Mesh) -> Any:
    """Causal splash attention, each device on its own rows of the batch."""
    q, kv = min(step.block_q, step.sequence), min(step.block_kv, step.sequence)
    sizes = splash.BlockSizes(
        block_q=q, block_kv=kv, block_kv_compute=kv, block_q_dkv=q, block_kv_dkv=kv,
        block_kv_dkv_compute=kv, use_fused_bwd_kernel=True,
    )  # fmt: skip
    mask = splash.MultiHeadMask(
        [splash.CausalMask((step.sequence, step.sequence)) for _ in range(step.heads)]
    )
    kernel = splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)
    rows = P("fsdp", None, None, None)

    @partial(jax.shard_map, mesh=mesh, in_specs=(rows, rows, rows), out_specs=rows, check_vma=False)
    def attend(q: Any, k: Any, v: Any) -> Any:
        by_head = [jnp.swapaxes(one, 1, 2) for one in (q, k, v)]
        return jnp.swapaxes(jax.vmap(kernel)(*by_head), 1, 2)

    return attend
