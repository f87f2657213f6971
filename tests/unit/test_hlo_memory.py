"""Buffer assignments that XLA dumped: what it reserves, what is live, and damaged ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tpu_perf.errors import HloProblem
from tpu_perf.hlo.memory import MemoryProfile, memory_profile
from tpu_perf.hlo.module import read_module
from tpu_perf.hlo.schema import HloProto

pytestmark = pytest.mark.usefixtures("narrow_numbers")


SIDE = 64
MATRIX = 4 * SIDE * SIDE


def step(w: jax.Array, x: jax.Array) -> jax.Array:
    """The gradient of a product needs x, the activation and its gradient at once."""
    with jax.named_scope("op0"):
        gradient: jax.Array = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * gradient


def dumped(function: Callable[..., Any], directory: Path, *arguments: Any, **jit: Any) -> Any:
    """(bytes of the dumped HloProto, what the compiler says of the program's memory)."""
    made = (
        jax.jit(function, **jit)
        .lower(*arguments)
        .compile(compiler_options={"xla_dump_to": str(directory), "xla_dump_hlo_as_proto": True})
    )
    (file,) = directory.glob("*step*after_optimizations.hlo.pb")
    return file.read_bytes(), made.memory_analysis()


def profile(data: bytes) -> MemoryProfile:
    found = memory_profile(read_module(data))
    assert found is not None
    return found


@pytest.mark.parametrize("donated", [(), (0,)])
def test_reserved_bytes_are_what_the_compiler_says(
    tmp_path: Path, donated: tuple[int, ...]
) -> None:
    square = jnp.ones((SIDE, SIDE))
    data, xla = dumped(step, tmp_path, square, square, donate_argnums=donated)
    found = profile(data)
    assert found.argument_bytes == xla.argument_size_in_bytes == 2 * MATRIX
    assert found.output_bytes == xla.output_size_in_bytes == MATRIX
    assert found.alias_bytes == xla.alias_size_in_bytes == len(donated) * MATRIX
    assert found.temporary_bytes == xla.temp_size_in_bytes
    assert found.elsewhere_bytes == {}
    arguments = found.argument_bytes + found.output_bytes - found.alias_bytes
    assert found.reserved_bytes == arguments + found.constant_bytes + found.temporary_bytes


def test_what_is_live_lies_within_what_is_reserved(tmp_path: Path) -> None:
    square = jnp.ones((SIDE, SIDE))
    data, _ = dumped(step, tmp_path, square, square)
    found = profile(data)
    assert found.peak_temporary_bytes is not None
    assert MATRIX <= found.peak_temporary_bytes <= found.temporary_bytes
    assert max(point.live_bytes for point in found.live) == found.peak_temporary_bytes
    names = {one.name for one in read_module(data).by_id.values()}
    assert {buffer.instruction for buffer in found.at_peak} <= names
    temporaries = [buffer for buffer in found.at_peak if buffer.kind == "temporary"]
    assert sum(buffer.size_bytes for buffer in temporaries) == found.peak_temporary_bytes
    assert {0} in [set(buffer.positions) for buffer in temporaries]
    sizes = [buffer.size_bytes for buffer in found.at_peak]
    assert sizes == sorted(sizes, reverse=True)


def _unknown_instruction(assignment: Any) -> None:
    assignment.logical_buffers[0].defined_at.instruction_id = 1 << 40
    assignment.logical_buffers[0].defined_at.instruction_name = ""


def _unknown_buffer(assignment: Any) -> None:
    for allocation in assignment.buffer_allocations:
        if not allocation.is_thread_local and allocation.assigned:
            allocation.assigned[0].logical_buffer_id = 1 << 40


@pytest.mark.parametrize("damage", [_unknown_instruction, _unknown_buffer])
def test_damage_is_told(tmp_path: Path, damage: Callable[[Any], None]) -> None:
    square = jnp.ones((SIDE, SIDE))
    proto = HloProto.FromString(dumped(step, tmp_path, square, square)[0])
    damage(proto.buffer_assignment)
    with pytest.raises(HloProblem, match="buffer assignment"):
        memory_profile(read_module(proto.SerializeToString()))
