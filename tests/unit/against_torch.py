"""Runs one lowering under jax.jit and compares it with the same aten op of torch on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils import _pytree as pytree

from tpu_perf.runtime.dtypes import numpy_dtype
from tpu_perf.runtime.jax_private import start_platform
from tpu_perf.runtime.lowerings import load_all
from tpu_perf.runtime.lowerings.precision import cast, compute_dtype
from tpu_perf.runtime.lowerings.registry import Call, Number, TensorMeta

start_platform()
TABLE = load_all()

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3,
             torch.complex64: 2e-5}  # fmt: skip

#: A test runs each program once: compile time is all its time.
FAST_COMPILE: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,
}


def overload(name: str) -> Any:
    """The aten overload with this name of the table."""
    base, _, kind = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), kind or "default")


def to_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A copy of a CPU tensor as a host array of the dtype that stands for it."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype is torch.bfloat16:
        return tensor.float().numpy().astype(numpy_dtype(tensor.dtype))
    return tensor.numpy().copy()


class _Inputs:
    """Arguments with tensors and run-time numbers taken out, to be put back as JAX values."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.kinds: list[type | None] = []

    def take(self, value: Any, is_number: bool) -> Any:
        if isinstance(value, (list, tuple)):
            return [self.take(v, is_number) for v in value]
        if isinstance(value, torch.Tensor):
            self.kinds.append(None)
            self.arrays.append(to_array(value))
        elif is_number and isinstance(value, (bool, int, float, complex)):
            self.kinds.append(type(value))
            self.arrays.append(value)
        else:
            return value
        return _Slot(len(self.arrays) - 1)

    def put(self, value: Any, arrays: tuple[Any, ...]) -> Any:
        if isinstance(value, list):
            return [self.put(v, arrays) for v in value]
        if not isinstance(value, _Slot):
            return value
        kind = self.kinds[value.index]
        return arrays[value.index] if kind is None else Number(arrays[value.index], kind)


class _Slot:
    def __init__(self, index: int) -> None:
        self.index = index


_NUMBER_TYPES = ("number", "Optional[number]", "float", "Optional[float]", "List[number]",
                 "List[float]", "Tensor", "List[Tensor]", "Optional[Tensor]")  # fmt: skip


def prepare(
    name: str,
    metas: tuple[TensorMeta, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seed: int | None = None,
) -> tuple[Callable[..., list[jax.Array]], list[Any]]:
    """A function of arrays that computes the op with its lowering, and the arrays."""
    lowering = TABLE[name if "." in name else f"{name}.default"]
    inputs = _Inputs()
    types = {a.name: str(a.type) for a in overload(name)._schema.arguments}
    runtime: set[str] = set()
    if not lowering.static_numbers:
        runtime = {n for n, t in types.items() if t in _NUMBER_TYPES}
    positional = list(types)
    taken = [inputs.take(v, positional[i] in runtime) for i, v in enumerate(args)]
    named = {n: inputs.take(v, n in runtime) for n, v in kwargs.items()}

    def program(*arrays: Any) -> list[jax.Array]:
        draw = None if seed is None else jnp.asarray(seed, jnp.int64)
        call = Call(f"aten::{name}", metas, draw, draw)
        result = lowering.lower(
            call,
            *(inputs.put(t, arrays) for t in taken),
            **{n: inputs.put(t, arrays) for n, t in named.items()},
        )
        return [r for r in pytree.tree_leaves(result) if isinstance(r, jax.Array)]

    return program, [jnp.asarray(a) for a in inputs.arrays]


def run(
    name: str,
    metas: tuple[TensorMeta, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seed: int | None = None,
) -> list[jax.Array]:
    """The lowering's results under jit."""
    program, arrays = prepare(name, metas, args, kwargs, seed)
    return list(jax.jit(program, compiler_options=FAST_COMPILE)(*arrays))


def metas_of(tensors: list[torch.Tensor]) -> tuple[TensorMeta, ...]:
    return tuple(TensorMeta(tuple(t.shape), t.dtype) for t in tensors)


Case = tuple[str, tuple[Any, ...]]


def check_all(cases: Sequence[Case], tolerance: float | None = None) -> None:
    """As `check` for many ops, compiled as one program: that is most of the time of a test."""
    programs, inputs, wanted = [], [], []
    for name, args in cases:
        outs = overload(name)(*args)
        wanted.append([t for t in pytree.tree_leaves(outs) if isinstance(t, torch.Tensor)])
        program, arrays = prepare(name, metas_of(wanted[-1]), args, {})
        programs.append(program)
        inputs.append(arrays)

    def together(inputs: list[list[Any]]) -> list[list[jax.Array]]:
        return [p(*arrays) for p, arrays in zip(programs, inputs, strict=True)]

    made = jax.jit(together, compiler_options=FAST_COMPILE)(inputs)
    for (name, _), results, expected in zip(cases, made, wanted, strict=True):
        assert len(results) == len(expected), name
        for got, want in zip(results, expected, strict=True):
            same(got, want, tolerance, name)


def check(name: str, *args: Any, tolerance: float | None = None, **kwargs: Any) -> None:
    """Assert that the lowering of an op gives what torch gives on the CPU."""
    expected = [
        t
        for t in pytree.tree_leaves(overload(name)(*args, **kwargs))
        if isinstance(t, torch.Tensor)
    ]
    results = run(name, metas_of(expected), args, kwargs)
    assert len(results) == len(expected)
    for got, want in zip(results, expected, strict=True):
        same(got, want, tolerance, name)


def check_mutation(
    name: str,
    written: tuple[int, ...],
    *args: Any,
    tolerance: float | None = None,
    skip: tuple[int, ...] = (),
    **kwargs: Any,
) -> None:
    """As `check` for an op that only changes its arguments: those at `written`. The values of
    those at `skip` are not compared."""
    copies = pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, args)
    overload(name)(*copies, **kwargs)
    expected = [(i, t) for i in written for t in pytree.tree_leaves(copies[i])]
    results = run(name, metas_of([t for _, t in expected]), args, kwargs)
    assert len(results) == len(expected)
    for got, (position, want) in zip(results, expected, strict=True):
        if position not in skip:
            same(got, want, tolerance)


def same(
    got: jax.Array, want: torch.Tensor, tolerance: float | None = None, name: str = ""
) -> None:
    """Assert equal shapes up to broadcasting, fitting dtypes and close values."""
    expected = to_array(want)
    if want.dtype.is_floating_point:
        allowed = {expected.dtype, compute_dtype(expected.dtype)}
        assert got.dtype in allowed or got.dtype in (jnp.bool_, jnp.int32, jnp.int64), (
            f"{name}: {got.dtype} for {want.dtype}: a number widened the result"
        )
    values = np.asarray(cast(got, expected.dtype))
    if values.shape != expected.shape:
        values = (
            values.reshape(expected.shape)
            if values.size == expected.size
            else np.broadcast_to(values, expected.shape)
        )
    if not (want.dtype.is_floating_point or want.dtype.is_complex):
        np.testing.assert_array_equal(values, expected, err_msg=name)
        return
    limit = TOLERANCE[want.dtype] if tolerance is None else tolerance
    kind = np.complex128 if want.dtype.is_complex else np.float64
    np.testing.assert_allclose(
        values.astype(kind), expected.astype(kind), rtol=limit, atol=limit, err_msg=name
    )


def sample(
    *shape: int, dtype: torch.dtype = torch.float32, low: float = -3, high: float = 3, seed: int = 0
) -> torch.Tensor:
    """Reproducible values between two bounds."""
    generator = torch.Generator().manual_seed(seed + sum(shape) * 7)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        values = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
        if dtype.is_complex:
            turned = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low)
            return torch.complex(values, turned + low).to(dtype)
        return values.to(dtype)
    return torch.randint(int(low), int(high) + 1, shape, generator=generator).to(dtype)
