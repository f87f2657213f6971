"""Matrix products of groups of rows with a matrix each, as mixtures of experts use them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings.registry import Call, lowers

#: [M, K] x [K, N] with groups along K: one product a group.
_GROUPED_CONTRACTION = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (0,)), ((), ())),
    lhs_ragged_dimensions=[1],
    rhs_group_dimensions=[],
)


@lowers("_grouped_mm")
def grouped_mm(
    call: Call,
    self: jax.Array,
    mat2: jax.Array,
    offs: jax.Array | None = None,
    bias: jax.Array | None = None,
    out_dtype: object = None,
) -> jax.Array:
    """Groups end at `offs`: rows of `self`, columns of `mat2`, or what both are summed over. What
    lies beyond the last group is zero. Accumulates in float32."""
    wide = jnp.promote_types(call.dtype, jnp.float32)
    if offs is None:
        made = jnp.matmul(self, mat2, preferred_element_type=wide)
    else:
        ends = offs.astype(jnp.int32)
        sizes = jnp.diff(ends, prepend=jnp.zeros((1,), jnp.int32))
        if self.ndim == 2 and mat2.ndim == 3:
            made = lax.ragged_dot(self, mat2, sizes, preferred_element_type=wide)
        elif self.ndim == 3 and mat2.ndim == 2:
            made = lax.ragged_dot(
                mat2.T, jnp.swapaxes(self, 1, 2), sizes, preferred_element_type=wide
            ).T
        else:
            made = lax.ragged_dot_general(
                self, mat2, sizes, _GROUPED_CONTRACTION, preferred_element_type=wide
            )
    return made if bias is None else made + bias
