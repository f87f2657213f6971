"""Comparisons and gates as Markdown, for a pull request or a job's summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tpu_perf.analysis.gate import Gate
from tpu_perf.analysis.ladder_comparison import LadderComparison
from tpu_perf.analysis.run_comparison import RunComparison
from tpu_perf.export.comparison import rows
from tpu_perf.export.markdown import escaped
from tpu_perf.export.runs.markdown import table_lines


def comparison_markdown(comparison: LadderComparison, top: int) -> str:
    """Tables of metrics and of what moved for each rung."""
    base, new = (escaped(str(path)) for path in (comparison.base, comparison.new))
    lines = [f"### {base} against {new}", ""]
    for run in comparison.rungs:
        lines += [f"#### {escaped(run.name)}", ""]
        lines += _table(rows.METRIC_HEAD, rows.metric_rows(run), left=1)
        lines += [*_moved(run, top), *_list(rows.notes(run)), ""]
    lines += [*_list(rows.unmatched(comparison)), f"{escaped(rows.LEGEND)}."]
    return "\n".join(lines) + "\n"


def gate_markdown(gate: Gate, top: int = 5) -> str:
    """The outcome, the checks, and for rungs that regressed what moved."""
    lines = [f"### {escaped(rows.headline(gate))}", ""]
    lines += _table(rows.GATE_HEAD, rows.gate_rows(gate), left=2)
    lines += ["", *_list(map(rows.sentences, gate.checks))]
    slower = {check.rung for check in gate.regressed}
    for run in gate.comparisons[0].rungs:
        if run.name in slower:
            lines += _moved(run, top)
    for comparison in gate.comparisons:
        lines += _list([*rows.unmatched(comparison), *_conditions(comparison)])
    return "\n".join(lines) + "\n"


def _conditions(comparison: LadderComparison) -> Iterator[str]:
    """In what the sides differ, each thing once for all rungs."""
    found = dict.fromkeys(str(d) for run in comparison.rungs for d in run.differences)
    if found:
        yield "base and new differ in " + "; ".join(found)


def _moved(run: RunComparison, top: int) -> list[str]:
    moved = rows.moved_rows(run, top)
    if not moved:
        return []
    head = [cell or "by" for cell in rows.MOVED_HEAD]
    title = f"Time that moved in {escaped(run.name)}, per step:"
    return ["", title, "", *_table(head, moved, left=3)]


def _table(head: Iterable[str], cells: Iterable[rows.Cells], left: int) -> list[str]:
    return table_lines(list(head), [[escaped(cell) for cell in row] for row in cells], left=left)


def _list(sentences: Iterable[str]) -> list[str]:
    items = [f"- {escaped(sentence)}" for sentence in sentences]
    return ["", *items, ""] if items else []
