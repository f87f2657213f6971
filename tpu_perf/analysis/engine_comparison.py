"""Two engines on one job, mode by mode: into which programs each of them cuts a step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tpu_perf.analysis.rung_record import RungRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgram:
    """A program that ran in a step. `ops` are names without overload, None where not known."""

    name: str
    ops: tuple[str, ...] | None


@dataclass(frozen=True)
class EngineRung:
    """A measured rung with the programs of one of its steady steps."""

    rung: RungRecord

    @property
    def engine(self) -> str:
        return "unknown" if self.rung.run is None else self.rung.run.plan.engine

    @property
    def mode(self) -> str:
        return "unknown" if self.rung.run is None else str(self.rung.run.plan.mode)

    @property
    def stand_in(self) -> bool:
        """Whether TorchTPU ran over the CPU plugin in place of a TPU."""
        return "torch_tpu_device" in self.rung.facts.source

    @cached_property
    def programs(self) -> list[StepProgram]:
        """Programs of the last step that counts, in the order in which they ran."""
        tables = self.rung.measured.recorded
        if tables.timed.empty:
            return []
        executes = tables.timed_events("execute")
        executes = executes[executes["step"] == tables.timed["step"].iloc[-1]]
        numbers = executes.sort_values("t_start_ns", kind="stable")["program"]
        listed = self.rung.measured.detail("program_ops").sort_values(["program", "position"])
        names = tables.programs["name"].astype("object")
        ops = {
            int(str(number)): tuple(base_name(str(op)) for op in found)
            for number, found in listed.groupby("program")["op"]
        }
        return [
            StepProgram(name=str(names.get(number, "not resolved")), ops=ops.get(number))
            for number in map(int, numbers)
        ]

    @property
    def unresolved_share(self) -> float | None:
        """Share of a step's executions whose ops are not known; None without executions."""
        if not self.programs:
            return None
        return sum(one.ops is None for one in self.programs) / len(self.programs)

    @property
    def ops_per_program(self) -> float | None:
        """Mean over the executions whose ops are known."""
        sizes = [len(one.ops) for one in self.programs if one.ops is not None]
        return sum(sizes) / len(sizes) if sizes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCut:
    """How often an op runs in a step of each of two rungs, and how large its programs are there
    (mean number of ops); None where it does not run."""

    op: str
    runs: tuple[int, int]
    program_ops: tuple[float | None, float | None]

    @property
    def weight(self) -> float:
        """What this op's programs cost one engine more than the other: its share in each program,
        summed over its runs."""
        shares = [
            runs / size if size else 0.0
            for runs, size in zip(self.runs, self.program_ops, strict=True)
        ]
        return abs(shares[0] - shares[1])


def base_name(op: str) -> str:
    """`add` of aten::add_.Tensor and of TorchTPU's add.out."""
    name = op.split("::")[-1].split(".")[0]
    return name.rstrip("_") or name


#: Rungs of one mode on two engines.
Pair = tuple[EngineRung, EngineRung]


def pairs(rungs: Sequence[RungRecord]) -> list[Pair]:
    """Measured rungs of one mode on two engines; the first engine of the ladder comes first."""
    measured = [EngineRung(rung) for rung in rungs if rung.ok and rung.tables is not None]
    by_mode: dict[str, list[EngineRung]] = {}
    for one in measured:
        by_mode.setdefault(one.mode, []).append(one)
    found = []
    for same in by_mode.values():
        first = same[0]
        found += [(first, other) for other in same[1:] if other.engine != first.engine]
    return found


def cuts(first: EngineRung, second: EngineRung) -> list[OpCut]:
    """Every op of either step, those first that the two put into programs most differently."""
    sides = [_sizes(one.programs) for one in (first, second)]
    out = [
        OpCut(
            op=op,
            runs=(sum(sides[0].get(op, {}).values()), sum(sides[1].get(op, {}).values())),
            program_ops=(_mean(sides[0].get(op)), _mean(sides[1].get(op))),
        )
        for op in sorted({*sides[0], *sides[1]})
    ]
    return sorted(out, key=lambda cut: -cut.weight)


def _sizes(programs: Sequence[StepProgram]) -> dict[str, Counter[int]]:
    """For each op, the sizes of the programs that it ran in."""
    found: dict[str, Counter[int]] = {}
    for program in programs:
        for op in program.ops or ():
            found.setdefault(op, Counter())[len(program.ops or ())] += 1
    return found


def _mean(sizes: Mapping[int, int] | None) -> float | None:
    if not sizes:
        return None
    return sum(size * runs for size, runs in sizes.items()) / sum(sizes.values())


def loss_difference(first: RungRecord, second: RungRecord) -> float | None:
    """Largest |difference| of the losses of the first steps, in nats; None without any."""
    both = zip(first.facts.losses, second.facts.losses, strict=False)
    return max((abs(a - b) for a, b in both if math.isfinite(a - b)), default=None)
