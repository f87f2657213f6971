"""Sizes of the benchmark's language model, and its initial parameters and tokens as NumPy arrays.

Every contender starts from these very arrays, so that equal losses prove equal work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]

LEARNING_RATE = 1e-4
BETA1, BETA2 = 0.9, 0.999
EPSILON = 1e-8
WEIGHT_DECAY = 0.01
NORM_EPSILON = 1e-6
#: Distinct batches, used in turn.
BATCHES = 8


@dataclass(frozen=True, slots=True)
class Size:
    """Shape of a decoder-only language model and of its batches."""

    name: str
    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    batch: int
    length: int


SIZES = {
    size.name: size
    for size in (
        Size("small_lm", 4, 256, 4, 704, 512, 4, 128),
        # So small that only the cost per op and per step counts.
        Size("overhead", 4, 32, 2, 88, 512, 1, 16),
    )
}


def initial_parameters(size: Size, seed: int = 0) -> dict[str, Floats]:
    """Weights by name, linear ones as torch keeps them: (out, in)."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> Floats:
        return (random.standard_normal(shape) * 0.02).astype(np.float32)

    width, hidden = size.width, size.hidden
    parameters = {
        "embed.weight": normal(size.vocabulary, width),
        "position.weight": normal(size.length, width),
    }
    for layer in range(size.layers):
        parameters |= {
            f"blocks.{layer}.norm1.weight": np.ones(width, np.float32),
            f"blocks.{layer}.query.weight": normal(width, width),
            f"blocks.{layer}.key.weight": normal(width, width),
            f"blocks.{layer}.value.weight": normal(width, width),
            f"blocks.{layer}.out.weight": normal(width, width),
            f"blocks.{layer}.norm2.weight": np.ones(width, np.float32),
            f"blocks.{layer}.gate.weight": normal(hidden, width),
            f"blocks.{layer}.up.weight": normal(hidden, width),
            f"blocks.{layer}.down.weight": normal(width, hidden),
        }
    parameters["norm.weight"] = np.ones(width, np.float32)
    parameters["head.weight"] = normal(size.vocabulary, width)
    return parameters


def token_batches(size: Size, seed: int = 1) -> list[Tokens]:
    """`BATCHES` arrays of (batch, length + 1) random tokens; the last one is only a target."""
    random = np.random.default_rng(seed)
    shape = (size.batch, size.length + 1)
    return [random.integers(0, size.vocabulary, shape).astype(np.int32) for _ in range(BATCHES)]
