"""Two ladders, rung by rung, or two runs: whatever lies in two directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tpu_perf.analysis.comparability import Difference, differences
from tpu_perf.analysis.moved_time import Grouping
from tpu_perf.analysis.run_comparison import COMPARED, RunComparison, compare_runs, refuse
from tpu_perf.analysis.rung_record import stored_run
from tpu_perf.errors import StoredRunError
from tpu_perf.record.store import LADDER_FILE, StoredRun, load_ladder, load_run


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderComparison:
    """`rungs`: those that have a result on both sides. `lost`: rung -> why, for rungs with a
    result only at base and a failed one at new; `gained` the reverse; `only_base` and `only_new`
    exist on one side only. Two runs are a comparison of one rung."""

    base: Path
    new: Path
    rungs: tuple[RunComparison, ...]
    lost: dict[str, str]
    gained: dict[str, str]
    only_base: tuple[str, ...]
    only_new: tuple[str, ...]


def compare(
    base: Path,
    new: Path,
    *,
    rungs: Sequence[str] = (),
    force: bool = False,
    by: Sequence[Grouping] = ("op", "module"),
    metrics: Sequence[str] = COMPARED,
) -> LadderComparison:
    """Compare two ladder directories rung by rung, or two run directories.

    `rungs`: only these; of a ladder and a run, the one rung of the ladder to set against the run.
    Raises NotComparable as `compare_runs` does, for all rungs at once, and StoredRunError where
    nothing can be set against each other.
    """
    ladders = [(directory / LADDER_FILE).exists() for directory in (base, new)]
    if not all(ladders):
        chosen = rungs[0] if len(rungs) == 1 else None
        sides = [
            stored_run(directory, chosen if is_ladder else None)
            for directory, is_ladder in zip((base, new), ladders, strict=True)
        ]
        one = compare_runs(sides[0], sides[1], force=force, by=by, metrics=metrics)
        return LadderComparison(base=base, new=new, rungs=(one,), lost={}, gained={},
                                only_base=(), only_new=())  # fmt: skip
    before, after = _runs_of(base), _runs_of(new)
    chosen_names = [name for name in before if name in after and (not rungs or name in rungs)]
    unknown = [name for name in rungs if name not in before or name not in after]
    if unknown or not chosen_names:
        raise StoredRunError(
            f"{base} and {new} have no rung {', '.join(unknown)} in common" if unknown
            else f"{base} and {new} have no rung in common",
            hint=f"rungs of base: {', '.join(before)}; of new: {', '.join(after)}",
        )  # fmt: skip
    pairs: list[tuple[StoredRun, StoredRun]] = []
    lost, gained = {}, {}
    for name in chosen_names:
        one_side, other = before[name], after[name]
        reasons = _no_result(one_side), _no_result(other)
        if isinstance(one_side, StoredRun) and isinstance(other, StoredRun) and not any(reasons):
            pairs.append((one_side, other))
        elif reasons[1] and not reasons[0]:
            lost[name] = reasons[1]
        elif reasons[0] and not reasons[1]:
            gained[name] = reasons[0]
    _refuse_all(pairs, force, base, new)
    return LadderComparison(
        base=base,
        new=new,
        rungs=tuple(compare_runs(*pair, force=True, by=by, metrics=metrics) for pair in pairs),
        lost=lost,
        gained=gained,
        only_base=tuple(name for name in before if name not in after),
        only_new=tuple(name for name in after if name not in before),
    )


def _runs_of(directory: Path) -> dict[str, StoredRun | str]:
    """Every rung's run, or why there is none to read."""
    found: dict[str, StoredRun | str] = {}
    for rung in load_ladder(directory).rungs:
        try:
            found[rung.name] = load_run(directory / rung.run)
        except StoredRunError as error:
            found[rung.name] = error.message
    return found


def _no_result(side: StoredRun | str) -> str:
    """Why there is nothing to compare; empty for a run that is ok."""
    if isinstance(side, str):
        return side
    return "" if side.run.status == "ok" else f"{side.run.status}: {side.run.reason}"


def _refuse_all(
    pairs: Sequence[tuple[StoredRun, StoredRun]], force: bool, base: Path, new: Path
) -> None:
    """One refusal for all rungs, naming each difference once."""
    blocking: dict[str, Difference] = {}
    for before, after in pairs:
        for difference in differences(before.run, after.run):
            if difference.blocking:
                blocking.setdefault(str(difference), difference)
    refuse(list(blocking.values()), force, f"{base} and {new}")
