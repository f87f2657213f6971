"""Two runs side by side: in what they differ, which metrics changed, and what moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpu_perf.analysis import quantities
from tpu_perf.analysis.comparability import Difference, differences
from tpu_perf.analysis.metric_change import MetricChange, metric_change
from tpu_perf.analysis.moved_time import Grouping, Moved, moved_time
from tpu_perf.analysis.run_details import RunDetails
from tpu_perf.analysis.run_summary import RunSummary
from tpu_perf.analysis.rung_record import RungRecord
from tpu_perf.errors import NotComparable, StoredRunError
from tpu_perf.record.metric import METRIC_UNITS
from tpu_perf.record.store import LADDER_FILE, StoredRun, load_ladder

#: Two measurements of the machine's own peak further apart than this are worth a note.
PEAK_MOVED = 0.10
_WORTH_A_NOTE = ("unstable samples", "dropped events", "late compile", "shared machine")
#: In every ladder the speed-up refers to that ladder's baseline, so it says nothing across two.
COMPARED = tuple(name for name in METRIC_UNITS if name != "speedup")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """`paired`: the rounds of both runs were sampled interleaved, in one ladder. `metrics` has
    every metric but the speed-up, `moved` every op and module (of both lanes) by how much its time
    moved. `notes`: what to know before trusting it."""

    name: str
    base: StoredRun
    new: StoredRun
    differences: tuple[Difference, ...]
    paired: bool
    metrics: tuple[MetricChange, ...]
    moved: tuple[Moved, ...]
    notes: tuple[str, ...]

    @property
    def blocking(self) -> tuple[Difference, ...]:
        """What should have forbidden the comparison, had it not been forced."""
        return tuple(difference for difference in self.differences if difference.blocking)

    def metric(self, name: str) -> MetricChange:
        return next(change for change in self.metrics if change.name == name)


def compare_runs(
    base: StoredRun,
    new: StoredRun,
    *,
    force: bool = False,
    by: Sequence[Grouping] = ("op", "module"),
    metrics: Sequence[str] = COMPARED,
) -> RunComparison:
    """Compare two runs. Raises NotComparable, with what differs, where a ratio would say more
    about the conditions than about the code, unless `force`; StoredRunError for damaged tables."""
    found = differences(base.run, new.run)
    refuse([d for d in found if d.blocking], force, f"{base.directory} and {new.directory}")
    before, after = RunSummary(base), RunSummary(new)
    paired = interleaved(base.directory, new.directory)
    names = base.run.plan.rung, new.run.plan.rung
    moved: tuple[Moved, ...] = ()
    if by and base.run.status == new.run.status == "ok":
        details = RunDetails(base), RunDetails(new)
        moved = moved_time((before.tables, details[0]), (after.tables, details[1]), by)
    return RunComparison(
        name=names[0] if names[0] == names[1] else f"{names[0]} -> {names[1]}",
        base=base,
        new=new,
        differences=found,
        paired=paired,
        metrics=tuple(
            metric_change(name, before.rung, after.rung, paired=paired) for name in metrics
        ),
        moved=moved,
        notes=tuple(_notes(before.rung, after.rung)),
    )


def refuse(blocking: Sequence[Difference], force: bool, what: str) -> None:
    """Raise NotComparable if anything blocks and nobody forces."""
    if blocking and not force:
        listed = "\n  ".join(str(difference) for difference in blocking)
        raise NotComparable(
            f"{what} cannot be compared, they differ in\n  {listed}",
            hint="--force compares them all the same, and says so",
        )


def interleaved(base: Path, new: Path) -> bool:
    """Whether both run directories are rungs of one ladder that were sampled in turns, so that
    round i of both saw the same machine."""
    homes = [_ladder_of(directory.resolve()) for directory in (base, new)]
    if None in homes or homes[0] != homes[1] or homes[0] is None:
        return False
    try:
        ladder = load_ladder(homes[0])
    except StoredRunError:
        return False
    names = {(homes[0] / rung.run).resolve(): rung.name for rung in ladder.rungs}
    pair = {names.get(base.resolve()), names.get(new.resolve())}
    return None not in pair and any(pair <= set(block) for block in ladder.blocks)


def _ladder_of(run: Path) -> Path | None:
    return next((home for home in list(run.parents)[:2] if (home / LADDER_FILE).exists()), None)


def _notes(base: RungRecord, new: RungRecord) -> Iterator[str]:
    for side, rung in (("base", base), ("new", new)):
        if not rung.ok:
            yield f"{side} has no result: {rung.missing_because}"
        for warning in rung.warnings:
            if warning.startswith(
                ("unstable samples", "dropped events", "late compile", "shared machine")
            ):
                yield f"{side}: {warning}"
    facts = base.facts, new.facts
    peaks = [fact.peak_flops_per_s for fact in facts if fact.peak_provenance == "measured"]
    if len(peaks) == 2 and peaks[0] and peaks[1] and abs(peaks[1] / peaks[0] - 1) > PEAK_MOVED:
        rates = [quantities.scaled(peak, "FLOP/s") for peak in peaks if peak]
        yield (
            f"the machine itself was not the same: its fastest GEMM reached {rates[0]} at base and "
            f"{rates[1]} at new"
        )
