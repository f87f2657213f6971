"""What every scheduled instruction of a module costs, and what one execution of it costs in all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tpu_perf.errors import HloProblem
from tpu_perf.hlo.category import category
from tpu_perf.hlo.loops import trip_count
from tpu_perf.hlo.module import Computation, Instruction, Module
from tpu_perf.hlo.text import instruction_text
from tpu_perf.hlo.traffic import traffic_of
from tpu_perf.hlo.work import work_of

#: Instructions whose computations are listed as rows of their own.
RUNS_COMPUTATIONS = frozenset({"while", "conditional", "call"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionCost:
    """One row of instructions.parquet (`record.details`), without the program.

    FLOPs, transcendental operations and bytes are of one execution of the instruction; None where
    not known. A while, conditional or call costs nothing itself: what it runs has rows of its own,
    so that the rows times their trip counts add up to the program. `bytes_elsewhere` are those of
    `bytes_read` and `bytes_written` outside main memory (in VMEM on a TPU).
    """

    instruction: str
    opcode: str
    category: str
    computation: str
    positions: tuple[int, ...]
    flops: float | None
    transcendentals: float | None
    bytes_read: float | None
    bytes_written: float | None
    bytes_elsewhere: float | None
    trip_count: float | None
    shape: str
    text: str

    def row(self, program: int) -> tuple[Any, ...]:
        """Its values in the order of INSTRUCTION_COLUMNS."""
        return (
            program,
            self.instruction,
            self.opcode,
            self.category,
            self.computation,
            json.dumps(self.positions),
            self.flops,
            self.bytes_read,
            self.bytes_written,
            self.trip_count,
            self.shape,
            self.text,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """A sum over a module: `value` is None if a part is unknown, `reason` then says which.

    `known` is the sum of the known parts: a lower bound.
    """

    value: float | None
    known: float
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """One execution of a module, loops included."""

    flops: Total
    transcendentals: Total
    bytes_read: Total
    bytes_written: Total


def costs(module: Module) -> list[InstructionCost]:
    """Rows in scheduled order; those of a loop's computations follow the loop.

    Reached are the entry computation and what while, conditional and call run from there. Fusions
    count whole, and so do the scalar functions of reductions and sorts.

    Raises HloProblem if attributes of an instruction do not fit its shapes.
    """
    rows: list[InstructionCost] = []
    listed: set[Computation] = set()

    def add(computation: Computation) -> None:
        listed.add(computation)
        for one in computation.instructions:
            rows.append(_row(one, computation, counts[computation]))
            for callee, _ in _runs(one):
                if callee not in listed:
                    add(callee)

    try:
        counts = executions(module)
        add(module.entry)
    except RecursionError:
        raise HloProblem(f"the HLO module {module.name!r} calls too deep to follow") from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise HloProblem(
            f"the HLO module {module.name!r} is damaged: attributes do not fit shapes: {error}"
        ) from None
    return rows


def _row(one: Instruction, computation: Computation, count: float | None) -> InstructionCost:
    work, traffic = work_of(one), traffic_of(one)
    return InstructionCost(
        instruction=one.name,
        opcode=one.opcode,
        category=category(one),
        computation=computation.name,
        positions=one.positions(),
        flops=work.flops,
        transcendentals=work.transcendentals,
        bytes_read=traffic.read,
        bytes_written=traffic.written,
        bytes_elsewhere=traffic.elsewhere,
        trip_count=count,
        shape=str(one.shape),
        text=instruction_text(one),
    )


def _runs(one: Instruction) -> Iterator[tuple[Computation, float | None]]:
    """Computations that an instruction runs, and how often one execution of it does."""
    if one.opcode not in RUNS_COMPUTATIONS:
        return
    if one.opcode == "while" and len(one.called) == 2:
        trips = trip_count(one)
        yield one.called[0], trips
        yield one.called[1], None if trips is None else trips + 1
    else:
        for callee in one.called:
            yield callee, 1.0 if one.opcode == "call" else None


def executions(module: Module) -> dict[Computation, float | None]:
    """How often one execution of the module runs each computation; None where not known."""
    counts: dict[Computation, float | None] = dict.fromkeys(module.computations, 0.0)
    counts[module.entry] = 1.0
    for computation in reversed(module.computations):  # callers before their callees
        mine = counts[computation]
        if mine == 0.0:
            continue
        for one in computation.instructions:
            for callee, times in _runs(one):
                before = counts[callee]
                known = mine is not None and times is not None and before is not None
                counts[callee] = before + mine * times if known else None  # type: ignore[operator]
    return counts


def totals(rows: Iterable[InstructionCost]) -> Totals:
    """One execution of the module whose rows these are."""
    listed = list(rows)
    return Totals(
        flops=_total("FLOPs", ((row, row.flops) for row in listed)),
        transcendentals=_total(
            "transcendental operations", ((row, row.transcendentals) for row in listed)
        ),
        bytes_read=_total("bytes read", ((row, row.bytes_read) for row in listed)),
        bytes_written=_total("bytes written", ((row, row.bytes_written) for row in listed)),
    )


def _total(what: str, parts: Iterable[tuple[InstructionCost, float | None]]) -> Total:
    known = 0.0
    unknown: list[str] = []
    for row, each in parts:
        if each == 0.0 or row.trip_count == 0.0:
            continue
        if each is None:
            unknown.append(f"the {what} of %{row.instruction} ({_what_it_is(row)})")
        elif row.trip_count is None:
            unknown.append(f"how often %{row.instruction} in %{row.computation} runs")
        else:
            known += each * row.trip_count
    if not unknown:
        return Total(value=known, known=known)
    more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    return Total(value=None, known=known, reason=f"not known: {unknown[0]}{more}")


def _what_it_is(row: InstructionCost) -> str:
    _, found, target = row.text.partition('custom_call_target="')
    return f"{row.opcode} to {target.partition(chr(34))[0]}" if found else row.opcode
