"""The rows of a comparison as text, the same on the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpu_perf.analysis import quantities
from tpu_perf.analysis.gate import Gate, GateCheck
from tpu_perf.analysis.ladder_comparison import LadderComparison
from tpu_perf.analysis.metric_change import MetricChange
from tpu_perf.analysis.moved_time import Moved
from tpu_perf.analysis.run_comparison import RunComparison
from tpu_perf.export.report.rung_tables import TITLES
from tpu_perf.record.metric import Metric

Cells = tuple[str, ...]

METRIC_HEAD = ("metric", "base", "new", "change", "95 %", "verdict")
MOVED_HEAD = ("what", "lane", "", "base", "new", "moved", "verdict")
GATE_HEAD = ("rung", "metric", "base", "new", "change", "95 %", "state")
LEGEND = (
    "m measured, d derived, p predicted, a assumed; change is new / base, between rungs of one "
    "ladder the median over rounds; worse and better mean p < 0.05"
)
#: States of a gate as a reader of a pull request scans them.
MARKS = {"regressed": "❌", "within the limit": "✅", "improved": "✅"}


def value(name: str, metric: Metric) -> str:
    letter = f" {metric.provenance[0]}" if metric.provenance else ""
    return quantities.text(name, metric) + letter


def percentage(change: Metric) -> str:
    """`+12.3 %`; `-` where it is not known."""
    return "-" if change.value is None else _signed(change.value)


def _signed(ratio: float) -> str:
    share = (ratio - 1) * 100
    return "0 %" if ratio == 1 else f"{share:+,.{0 if abs(share) >= 100 else 1}f} %"


def bounds(change: Metric) -> str:
    if change.low is None or change.high is None:
        return ""
    low, high = (_signed(bound).removesuffix(" %") for bound in (change.low, change.high))
    return f"{low} to {high}"


def verdict(change: MetricChange) -> str:
    if change.p_value is None:
        return change.verdict
    return f"{change.verdict} (p {quantities.small(change.p_value)})"


def metric_rows(comparison: RunComparison) -> Iterator[Cells]:
    """Metrics known on both sides that are not the same."""
    for change in comparison.metrics:
        if change.verdict == "same" or None in (change.base.value, change.new.value):
            continue
        before, after = value(change.name, change.base), value(change.name, change.new)
        yield (
            *(TITLES[change.name], before, after, percentage(change.change), bounds(change.change)),
            verdict(change),
        )


def moved_rows(comparison: RunComparison, top: int) -> list[Cells]:
    """What moved most, those with significance first."""
    ordered: Sequence[Moved] = sorted(
        (moved for moved in comparison.moved if moved.difference_s),
        key=lambda moved: moved.verdict not in ("worse", "better"),
    )
    return [
        (
            moved.label,
            moved.lane,
            moved.by,
            quantities.seconds(moved.base_s),
            quantities.seconds(moved.new_s),
            ("+" if moved.difference_s > 0 else "") + quantities.seconds(moved.difference_s),
            moved.verdict
            if moved.p_value is None
            else f"{moved.verdict} (p {quantities.small(moved.p_value)})",
        )
        for moved in ordered[:top]
    ]


def notes(comparison: RunComparison) -> Iterator[str]:
    """Everything to know before trusting it, what should have forbidden it first."""
    for difference in comparison.blocking:
        yield f"FORCED although they differ in {difference}"
    if comparison.paired:
        yield "rounds were sampled in turns, so each round is compared with its like"
    told = [str(d) for d in comparison.differences if not d.blocking]
    if told:
        yield "differ in " + "; ".join(told)
    same = [TITLES[change.name] for change in comparison.metrics if change.verdict == "same"]
    if same:
        yield f"the same in both: {', '.join(same)}"
    yield from comparison.notes
    reasons: dict[str, list[str]] = {}
    for change in comparison.metrics:
        if change.note:
            reasons.setdefault(change.note, []).append(TITLES[change.name])
    for reason, names in reasons.items():
        yield f"{', '.join(names)}: {reason}"


def unmatched(comparison: LadderComparison) -> Iterator[str]:
    """Rungs that could not be set against each other."""
    for name, why in comparison.lost.items():
        yield f"{name} has no result at new any more: {why}"
    for name, why in comparison.gained.items():
        yield f"{name} has a result at new only; at base: {why}"
    for side, names in (("base", comparison.only_base), ("new", comparison.only_new)):
        if names:
            yield f"only in {side}: {', '.join(names)}"


def gate_rows(gate: Gate) -> Iterator[Cells]:
    """A row for each check against each base."""
    for check in gate.checks:
        for change in check.changes:
            yield (
                check.rung,
                TITLES[check.metric],
                value(check.metric, change.base),
                value(check.metric, change.new),
                percentage(change.change),
                bounds(change.change),
                f"{MARKS.get(check.state, '⚠️')} {check.state}",
            )


def headline(gate: Gate) -> str:
    """The outcome in one sentence."""
    limit = quantities.percent(gate.limit)
    if gate.regressed:
        names = ", ".join(f"{check.rung} ({TITLES[check.metric]})" for check in gate.regressed)
        return f"Regression beyond {limit} and beyond noise: {names}"
    if gate.lost:
        return f"No result any more: {', '.join(gate.lost)}"
    open_checks = [c for c in gate.checks if c.state not in MARKS]
    if open_checks:
        return (
            f"No regression beyond {limit} was shown, but {len(open_checks)} of "
            f"{quantities.counted(len(gate.checks), 'check')} could not be decided"
        )
    return f"No regression beyond {limit}"


def sentences(check: GateCheck) -> str:
    return f"{check.rung}, {TITLES[check.metric]}: {check.state}: {check.because}"
