"""Modules that XLA itself optimised: costs by hand and by XLA, trip counts, positions, damage."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tpu_perf.errors import HloProblem
from tpu_perf.hlo.cost import InstructionCost, Totals, costs, totals
from tpu_perf.hlo.memory import memory_profile
from tpu_perf.hlo.module import Module, read_module
from tpu_perf.hlo.schema import HloModuleProto, HloProto

pytestmark = pytest.mark.usefixtures("narrow_numbers")


Array = jax.Array


def ones(*shape: int) -> Array:
    return jnp.ones(shape, jnp.float32)


@dataclass(frozen=True)
class Compiled:
    """What XLA made of a function: its bytes as read here, and XLA's own cost analysis."""

    data: bytes
    module: Module
    rows: list[InstructionCost]
    totals: Totals
    xla: dict[str, float]

    def rows_of(self, word: str) -> list[InstructionCost]:
        """Rows whose HLO text, with that of the fusions they call, holds an opcode."""
        named = {one.name: one for each in self.module.computations for one in each.instructions}
        return [
            row
            for row in self.rows
            if row.opcode == word
            or any(inner.opcode == word for inner in named[row.instruction].fused())
        ]


def compiled(function: Callable[..., Any], *arguments: Any) -> Compiled:
    made = jax.jit(function).lower(*arguments).compile()
    (module,) = made.runtime_executable().hlo_modules()  # type: ignore[union-attr]
    data = module.as_serialized_hlo_module_proto()
    read = read_module(data)
    rows = costs(read)
    return Compiled(data, read, rows, totals(rows), dict(made.cost_analysis() or {}))


def scanned(w: Array, x: Array) -> Array:
    final: Array = lax.scan(lambda carry, _: (jnp.tanh(carry @ w), None), x, None, length=7)[0]
    return final


def strided(x: Array, w: Array) -> Array:
    return lax.conv_general_dilated(x, w, (2, 2), "SAME", feature_group_count=2)


def transposed(x: Array, w: Array) -> Array:
    return lax.conv_general_dilated(x, w, (1, 1), ((2, 2), (2, 2)), lhs_dilation=(2, 2))


#: Function, arguments, FLOPs by hand, bytes read and written by hand. XLA may lay operands out
#: anew first, so bytes are given only where it does not.
BY_HAND: dict[str, tuple[Callable[..., Any], tuple[Any, ...], float, tuple[int, int] | None]] = {
    # 32 x 16 results of 64 multiply-adds; both factors once, the product once.
    "dot": (
        lambda a, b: a @ b,
        (ones(32, 64), ones(64, 16)),
        2 * 32 * 64 * 16,
        (4 * (32 * 64 + 64 * 16), 4 * 32 * 16),
    ),
    "batched dot": (
        lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
        (ones(3, 8, 16), ones(3, 16, 4)),
        2 * 3 * 8 * 16 * 4,
        (4 * 3 * (8 * 16 + 16 * 4), 4 * 3 * 8 * 4),
    ),
    # 9 points with stride 2 and padding 1 make 5; the first and the last meet 2 of 3 taps, so 13
    # pairs a dimension. 2 images, 6 maps out, each of 4 / 2 maps in.
    "grouped convolution": (strided, (ones(2, 4, 9, 9), ones(6, 2, 3, 3)), 2 * 13**2 * 2 * 6 * 2,
                            None),
    # 5 points with holes span 9, padded by 2 to 13: 11 outputs of 3 taps, of which 15 meet a
    # point (each of 5 points meets each of 3 taps once).
    "transposed convolution": (transposed, (ones(1, 2, 5, 5), ones(3, 2, 3, 3)),
                               2 * 15**2 * 2 * 3, None),
    # 128 numbers become one by 127 additions, in each of 256 columns.
    "reduction": (
        lambda a: a.sum(0),
        (ones(128, 256),),
        127 * 256,
        (4 * 128 * 256, 4 * 256),
    ),
    "elementwise": (
        lambda a, b: (a + b) * b - 1.0,
        (ones(40, 50), ones(40, 50)),
        3 * 40 * 50,
        (2 * 4 * 2000, 4 * 2000),
    ),
    # n log2 n comparisons, log2 rounded up.
    "sort": (jnp.sort, (ones(100),), 100 * 7, (400, 400)),
}  # fmt: skip


@cache
def by_hand(name: str) -> Compiled:
    return compiled(*BY_HAND[name][:1], *BY_HAND[name][1])


@pytest.mark.parametrize("name", BY_HAND)
def test_flops_and_bytes_by_hand_and_by_xla(name: str) -> None:
    found = by_hand(name)
    _, _, flops, moved = BY_HAND[name]
    assert found.totals.flops.value == flops
    assert found.xla["flops"] == flops
    read, written = found.totals.bytes_read.value, found.totals.bytes_written.value
    assert read is not None
    assert written is not None
    assert read + written == found.xla["bytes accessed"]
    if moved is not None:
        assert (read, written) == moved


def test_a_scan_counts_every_iteration() -> None:
    """XLA's own analysis counts a loop's body once; here times the trips."""
    found = compiled(scanned, ones(16, 16), ones(4, 16))
    (product,) = found.rows_of("dot")
    assert (product.flops, product.trip_count) == (2 * 4 * 16 * 16, 7)
    assert found.totals.transcendentals.value == 7 * 4 * 16
    # Beside the products: the counter's 7 additions and 8 comparisons.
    assert found.totals.flops.value == 7 * 2048 + 7 + 8
    assert found.xla["flops"] == 2048 + 2
    (loop,) = (row for row in found.rows if row.opcode == "while")
    assert (loop.flops, loop.bytes_read, loop.trip_count) == (0, 0, 1)


@pytest.mark.parametrize(("start", "stop", "trips"), [(0, 5, 5), (3, 5, 2), (0, 1, 1)])
def test_trip_counts_of_nested_loops_multiply(start: int, stop: int, trips: int) -> None:
    def nested(x: Array) -> Array:
        def body(_: Any, s: Array) -> Any:
            return lax.fori_loop(0, 3, lambda j, t: jnp.sin(t @ t), s)

        final: Array = lax.fori_loop(start, stop, body, x)
        return final

    (product,) = compiled(nested, ones(8, 8)).rows_of("dot")
    assert product.trip_count == 3 * trips


@pytest.mark.parametrize(
    ("begin", "proceed", "advance", "trips"),
    [
        (10, lambda i: i > 0, lambda i: i - 3, 4),  # 10, 7, 4, 1
        (0, lambda i: i <= 12, lambda i: i + 4, 4),  # 0, 4, 8, 12
        (0, lambda i: i != 6, lambda i: i + 2, 3),
        (6, lambda i: i >= 2, lambda i: i - 1, 5),  # 6, 5, 4, 3, 2
        (5, lambda i: i < 5, lambda i: i + 1, 0),
    ],
)
def test_counted_loops_of_every_kind(
    begin: int, proceed: Callable[[Any], Any], advance: Callable[[Any], Any], trips: int
) -> None:
    """Trips against Python's own count; XLA notes only some of them itself."""
    number, counted = begin, 0
    while proceed(number):
        number, counted = advance(number), counted + 1
    assert counted == trips

    def loop(x: Array) -> Array:
        return lax.while_loop(
            lambda s: proceed(s[0]), lambda s: (advance(s[0]), jnp.cos(s[1])), (begin, x)
        )[1]

    assert compiled(loop, ones(64)).totals.transcendentals.value == 64 * trips


def test_loops_of_unknown_length_are_unknown() -> None:
    def until(x: Array) -> Array:
        return lax.while_loop(lambda s: s.sum() < 100, lambda s: s * 2, x)

    found = compiled(until, ones(8)).totals
    assert found.flops.value is None
    assert "how often" in str(found.flops.reason)
    assert found.bytes_read.value is None


def test_branches_are_unknown_unless_they_cost_nothing() -> None:
    def choose(flag: Array, x: Array) -> Any:
        return lax.cond(flag, lambda a: a @ a, lambda a: a + 1, x)

    found = compiled(choose, jnp.array(True), ones(8, 8))
    (product,) = found.rows_of("dot")
    assert (product.flops, product.trip_count) == (1024, None)
    assert found.totals.flops.value is None


def test_gather_reads_what_it_takes_not_the_table() -> None:
    found = compiled(lambda table, at: table[at], ones(1000, 64), jnp.zeros(10, jnp.int32))
    (row,) = found.rows_of("gather")
    assert row.bytes_read == 4 * 10 * 64 + 4 * 10  # ten rows and their indices
    assert row.bytes_written == 4 * 10 * 64
    assert found.xla["bytes accessed"] > 4 * 1000 * 64  # XLA counts the table


def test_an_update_in_place_writes_what_it_changes() -> None:
    def update(x: Array, part: Array, at: Array) -> Array:
        return lax.dynamic_update_slice(x, part, (at, 0))

    found = compiled(update, ones(100, 8), ones(1, 8), jnp.array(3))
    (row,) = found.rows_of("dynamic-update-slice")
    assert row.bytes_written == 4 * 8
    assert row.bytes_read == 4 * 8 + 4  # the part and its place


def test_random_numbers_count_integers_as_xla_does() -> None:
    found = compiled(
        lambda key: lax.rng_bit_generator(key, (128,)), jnp.zeros(4, jnp.uint32)
    )  # expanded by XLA into Philox rounds
    assert found.totals.flops.value == found.xla["flops"] > 128
    assert found.totals.transcendentals.value == 0
    normal = compiled(lambda key: jax.random.normal(key, (128,)), jax.random.PRNGKey(0))
    assert normal.totals.flops.value is not None
    assert normal.totals.flops.value > normal.xla["flops"]  # its 5 rounds of threefry loop
    assert normal.totals.transcendentals.value == normal.xla["transcendentals"] == 2 * 128


def test_custom_calls_are_unknown_and_named() -> None:
    found = compiled(jnp.linalg.cholesky, jnp.eye(8))
    (call,) = (row for row in found.rows if row.opcode == "custom-call")
    assert call.flops is None
    # LAPACK is known to read the matrix once, and to write it and a status.
    assert (call.bytes_read, call.bytes_written) == (4 * 64, 4 * 64 + 4)
    assert found.totals.flops.value is None
    assert "lapack_spotrf" in str(found.totals.flops.reason)
    assert found.totals.flops.known > 0
    top = compiled(lambda a: lax.top_k(a, 4), ones(3, 100))
    assert top.xla["flops"] == -1  # what XLA says of a call that it cannot look into
    assert top.totals.flops.value is None
    assert top.totals.bytes_read.value == 4 * 300


def test_a_product_is_a_convolution_fusion_wherever_it_is() -> None:
    (row,) = by_hand("dot").rows_of("dot")
    assert row.category == "convolution fusion"
    (row,) = by_hand("elementwise").rows_of("multiply")
    assert row.category in ("loop fusion", "non-fusion elementwise")
    assert {row.category for row in by_hand("sort").rows} == {"parameter", "sort"}


def test_positions_come_from_named_scopes() -> None:
    def three(a: Array, b: Array) -> Array:
        with jax.named_scope("op3"):
            y = a @ b
        with jax.named_scope("op5"):
            y = jnp.exp(y)
        with jax.named_scope("op17"):
            return y * 2 + 1

    found = compiled(three, ones(32, 64), ones(64, 16))
    (product,) = found.rows_of("dot")
    (rest,) = found.rows_of("exponential")
    assert (product.positions, rest.positions) == ((3,), (5, 17))
    assert found.totals.flops.value == 2 * 32 * 64 * 16 + 2 * 32 * 16

    def looped(w: Array, x: Array) -> Array:
        with jax.named_scope("op2"):
            return scanned(w, x)

    (product,) = compiled(looped, ones(16, 16), ones(4, 16)).rows_of("dot")
    assert product.positions == (2,)

    def unlike(a: Array) -> Array:  # names that are no positions
        with jax.named_scope("op"), jax.named_scope("op4x"), jax.named_scope("myop6"):
            return jnp.exp(a)

    assert {row.positions for row in compiled(unlike, ones(4)).rows} == {()}


def test_rows_are_the_schedule_and_belong_to_their_lines() -> None:
    found = by_hand("dot")
    assert found.module.is_scheduled
    names = [one.name for one in found.module.entry.instructions]
    assert [row.instruction for row in found.rows] == names
    (product,) = found.rows_of("dot")
    one = next(i for i in found.module.entry.instructions if i.name == product.instruction)
    source = found.module.source(one)
    assert source is not None
    assert source[0].endswith("test_hlo.py")
    assert len(product.row(9)) == 12
    assert product.row(9)[0] == 9


def test_text_is_what_xla_prints() -> None:
    """Against XLA's own printer, cut before what is left out (metadata, backend_config)."""
    arguments = (ones(2, 4, 9, 9), ones(6, 2, 3, 3))
    made = jax.jit(strided).lower(*arguments).compile()
    module = made.runtime_executable().hlo_modules()[0]  # type: ignore[union-attr]
    printed = {}
    for line in module.to_string().splitlines():
        text = line.strip().removeprefix("ROOT ")
        if text.startswith("%") and " = " in text:
            printed[text.split(" = ")[0][1:]] = text.split(", metadata=")[0].split(
                ", backend_config="
            )[0]
    rows = costs(read_module(module.as_serialized_hlo_module_proto()))
    assert len(rows) > 4
    assert {row.instruction: row.text for row in rows} == {
        row.instruction: printed[row.instruction] for row in rows
    }


def test_memory_is_not_known_without_a_buffer_assignment() -> None:
    found = by_hand("dot")
    assert memory_profile(found.module) is None


def test_both_kinds_of_bytes_are_read() -> None:
    """A bare module, as jaxlib serialises it, and an HloProto around it, as XLA dumps it."""
    found = by_hand("dot")
    wrapped = HloProto(hlo_module=HloModuleProto.FromString(found.data)).SerializeToString()
    assert [row.text for row in costs(read_module(wrapped))] == [row.text for row in found.rows]


@pytest.mark.parametrize("data", [b"", b"\x00" * 64, b"\x89PNG\r\n\x1a\n", b"HloModule jit_f"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(HloProblem, match="not an HLO module"):
        read_module(data)


def test_damage_is_a_problem_or_harmless() -> None:
    """Cut anywhere, or with bytes changed anywhere, a module is read or refused."""
    data = compiled(scanned, ones(16, 16), ones(4, 16)).data
    chance = random.Random(4)
    damaged = [data[: chance.randrange(len(data))] for _ in range(150)]
    for _ in range(600):
        copy = bytearray(data)
        for _ in range(chance.choice((1, 1, 8))):
            copy[chance.randrange(len(copy))] = chance.randrange(256)
        damaged.append(bytes(copy))
    problems = []
    for each in damaged:
        try:
            totals(costs(read_module(each)))
        except HloProblem as problem:
            problems.append(str(problem))
    assert len(problems) > 100
    assert all("HLO module" in problem for problem in problems)


def _first(module: Any, opcode: str) -> Any:
    return next(
        one for each in module.computations for one in each.instructions if one.opcode == opcode
    )


def _without_operand(module: Any) -> None:
    _first(module, "dot").operand_ids[0] = 1 << 40


def _wrong_contraction(module: Any) -> None:
    _first(module, "dot").dot_dimension_numbers.lhs_contracting_dimensions[0] = 7


def _no_entry(module: Any) -> None:
    module.entry_computation_id = 12345


def _negative(module: Any) -> None:
    _first(module, "dot").shape.dimensions[0] = -4


def _no_root(module: Any) -> None:
    module.computations[0].root_id = 1 << 40


@pytest.mark.parametrize(
    "damage", [_without_operand, _wrong_contraction, _no_entry, _negative, _no_root]
)
def test_references_that_lead_nowhere_are_refused(damage: Callable[[Any], None]) -> None:
    module = HloModuleProto.FromString(by_hand("dot").data)
    damage(module)
    with pytest.raises(HloProblem, match="damaged"):
        costs(read_module(module.SerializeToString()))
