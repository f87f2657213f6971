"""The lowering table and what a lowering is given.

A lowering is a function `(call, *args, **kwargs) -> array or tuple of arrays` with the op's own
parameters: tensors arrive as JAX arrays, tensor lists as lists of arrays, numbers as `Number`
where their value is only known when the program runs, else as Python numbers; everything else
(dims, dtypes, flags, strings, None) as torch passes it. It returns values only: shapes and dtypes
of the outputs come from torch's own meta kernels (`call.out`), and the result is cast to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpu_perf.runtime.dtypes import numpy_dtype


class TensorMeta(NamedTuple):
    """Shape and dtype of one output, as torch's meta kernel gave them."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def jax_dtype(self) -> np.dtype:
        return numpy_dtype(self.dtype)


@dataclass(frozen=True, slots=True)
class Number:
    """A Python number that enters the program as a run-time argument.

    `value` is a 0-dim float64, int64 or bool array; `kind` is the Python type it had, which
    decides promotion (a Python number never widens a tensor's dtype within its category).
    """

    value: jax.Array
    kind: type


Operand = jax.Array | Number | float | int | bool | complex


@dataclass(slots=True)
class Call:
    """What a lowering knows besides its arguments."""

    op: str
    out: tuple[TensorMeta, ...]
    #: Draws of this program so far and the run-time (seed, first offset) pair; set for random ops.
    seed: jax.Array | None = None
    offset: jax.Array | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    #: Whether each tensor argument is contiguous, for the few ops that torch defines by that.
    contiguous: tuple[bool, ...] = ()

    @property
    def dtype(self) -> np.dtype:
        """JAX dtype of the first output."""
        return numpy_dtype(self.out[0].dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first output."""
        return self.out[0].shape

    def random_key(self) -> jax.Array:
        """The key of this op's draw: a function of the generator's seed and offset alone, so that
        every mode draws the same numbers."""
        if self.seed is None or self.offset is None:
            raise RuntimeError(f"{self.op} draws random numbers but is not registered as random")
        words = jnp.stack([
            self.seed.astype(jnp.uint32) ^ (self.seed.astype(jnp.uint64) >> 32).astype(jnp.uint32),
            self.offset.astype(jnp.uint32),
        ])  # fmt: skip
        key: jax.Array = jax.random.wrap_key_data(words, impl="threefry2x32")
        return key


Lower = Callable[..., Any]
F = TypeVar("F", bound=Lower)


@dataclass(frozen=True, slots=True)
class Lowering:
    """One entry: how an aten op (functional overload name, e.g. "add.Tensor") becomes JAX."""

    op: str
    lower: Lower
    static_numbers: bool  # numbers become part of the program instead of arguments
    random: bool  # draws from the generator
    #: Positions of arguments that the op mutates, for ops with no functional form; the lowering
    #: returns (outputs..., new values of these arguments...), lists of tensors spread out.
    mutates: tuple[int, ...]
    #: What Debug mode checks before the op runs, "indices:dim:source": the argument that holds
    #: indices, the dim they index, the argument that is indexed. `dim` is a number, the name of
    #: the argument that holds it, or "*" where `indices` is a list with one entry a dim (None: all
    #: of it). An argument called `ignore_index` names a value that is no index.
    index_check: str | None
    #: Called with the arguments of every eager call, before it runs: raises what torch's kernels
    #: raise for values that its meta kernels accept.
    check: Callable[..., None] | None = None


TABLE: dict[str, Lowering] = {}


def draws_numbers(lowering: Lowering | None, arguments: Mapping[str, Any]) -> bool:
    """Whether a call draws from the generator: dropout of nothing does not, as on the CPU, so
    that draws are counted alike everywhere."""
    if lowering is None or not lowering.random:
        return False
    off = arguments.get("train") is False or arguments.get("training") is False
    return not (off or arguments.get("dropout_p") == 0)


def lowers(
    *ops: str,
    static_numbers: bool = False,
    random: bool = False,
    mutates: tuple[int, ...] = (),
    index_check: str | None = None,
    check: Callable[..., None] | None = None,
) -> Callable[[F], F]:
    """Register a function as the lowering of aten overloads such as "add.Tensor"."""

    def register(function: F) -> F:
        for op in ops:
            name = op if "." in op else f"{op}.default"
            if name in TABLE:
                raise ValueError(f"lowering of {name} is registered twice")
            TABLE[name] = Lowering(
                name, function, static_numbers, random, mutates, index_check, check
            )
        return function

    return register


def as_array(operand: Operand, dtype: np.dtype | None = None) -> jax.Array:
    """The operand as an array of the given dtype (its own where None)."""
    value = operand.value if isinstance(operand, Number) else operand
    array = jnp.asarray(value)
    return array if dtype is None or array.dtype == dtype else array.astype(dtype)


def _category(dtype: np.dtype) -> int:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return 3
    if jnp.issubdtype(dtype, jnp.floating):
        return 2
    return 0 if dtype == np.bool_ else 1


def promote(*operands: Operand) -> list[jax.Array]:
    """Operands cast to torch's common dtype (torch.result_type's rules, after
    https://pytorch.org/docs/stable/tensor_attributes.html#type-promotion): tensors with dims
    outrank 0-dim tensors, which outrank Python numbers, within a category."""
    dtype = result_dtype(*operands)
    return [as_array(o, dtype) for o in operands]


def result_dtype(*operands: Operand) -> np.dtype:
    """torch's common dtype of these operands."""
    dims: list[torch.dtype] = []
    zeros: list[torch.dtype] = []
    numbers: list[torch.dtype] = []
    for o in operands:
        if isinstance(o, Number):
            numbers.append(_number_dtype(o.kind))
        elif isinstance(o, (bool, int, float, complex)):
            numbers.append(_number_dtype(type(o)))
        else:
            from tpu_perf.runtime.dtypes import TO_TORCH

            dtype = TO_TORCH[np.dtype(o.dtype)]
            (dims if o.ndim else zeros).append(dtype)
    result: torch.dtype | None = None
    for group in (dims, zeros, numbers):
        if not group:
            continue
        own = _promote_group(group)
        if result is None or _category(numpy_dtype(own)) > _category(numpy_dtype(result)):
            result = own if result is None else _widen(result, own, group is numbers)
    assert result is not None
    return numpy_dtype(result)


def _promote_group(group: list[torch.dtype]) -> torch.dtype:
    own = group[0]
    for other in group[1:]:
        own = torch.promote_types(own, other)
    return own


def _widen(low: torch.dtype, high: torch.dtype, is_number: bool) -> torch.dtype:
    """A higher category wins; a float number over integers gives the default float dtype, a
    complex number over floats the complex type of that width."""
    if is_number and high.is_complex and low.is_floating_point:
        return torch.promote_types(low, torch.complex32)
    return high


def _number_dtype(kind: type) -> torch.dtype:
    if kind is bool:
        return torch.bool
    if kind is int:
        return torch.int64
    if kind is complex:
        return torch.complex64 if torch.get_default_dtype() != torch.float64 else torch.complex128
    return torch.get_default_dtype()
