"""Exporter `markdown`: report.md, short enough for a pull request."""

from __future__ import annotations

import re
from pathlib import Path

from tpu_perf.analysis import quantities
from tpu_perf.analysis.ladder_metrics import completed
from tpu_perf.analysis.model_flops import peak_notes
from tpu_perf.analysis.rung_record import RungRecord
from tpu_perf.export.interface import EXPORTERS, Exporter
from tpu_perf.export.report.rung_tables import SUMMARY
from tpu_perf.record.ladder import Ladder

FILE_NAME = "report.md"
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!@$&])")


def write(directory: Path) -> Path:
    """Write report.md: the table, why, and warnings."""
    path = directory / FILE_NAME
    path.write_text(document(*completed(directory)), encoding="utf-8")
    return path


def escaped(text: str) -> str:
    """Text of the user on one line, so that Markdown shows it as it is."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def document(ladder: Ladder, rungs: list[RungRecord]) -> str:
    lines = [f"### Ladder {escaped(ladder.name)} `{ladder.id.replace('`', '')}`", ""]
    lines += _environment(rungs)
    lines += _table(ladder, rungs)
    lines += ["", "m measured, d derived, p predicted, a assumed; in brackets the 95 % interval."]
    lines += [f"{escaped(note)}." for note in peak_notes(rungs)]
    lines += _list("Why", [(rung.name, rung.why) for rung in rungs if rung.why])
    warnings = [("ladder", warning) for warning in ladder.warnings]
    warnings += [(rung.name, warning) for rung in rungs for warning in rung.warnings]
    lines += _list("Warnings", warnings)
    return "\n".join(lines) + "\n"


def _environment(rungs: list[RungRecord]) -> list[str]:
    for rung in rungs:
        if rung.run is not None and rung.run.environment is not None:
            machine = rung.run.environment
            versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
            cores = "unknown" if machine.cores is None else machine.cores
            line = f"{machine.cpu}, {cores} cores, device {machine.device_kind}; {versions}"
            return [escaped(line), ""]
    return []


def _table(ladder: Ladder, rungs: list[RungRecord]) -> list[str]:
    head = ["rung", "status", *SUMMARY.values()]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * 2 + " ---: |" * len(SUMMARY)]
    for rung in rungs:
        name = escaped(rung.name) + (" (baseline)" if rung.name == ladder.baseline else "")
        status = rung.status.replace("_", " ")
        cells = [_cell(rung, metric) for metric in SUMMARY]
        if not rung.ok:
            status += f": {escaped(rung.reason or '')}"
        lines.append(f"| {' | '.join([name, status, *cells])} |")
    return lines


def _cell(rung: RungRecord, name: str) -> str:
    metric = rung.metric(name)
    if metric.value is None or metric.provenance is None:
        return "–"
    bounds = quantities.interval(name, metric)
    text = f"{quantities.text(name, metric)} {metric.provenance[0]}"
    return f"{text} [{bounds}]" if bounds and name in ("step_time", "speedup") else text


def _list(title: str, pairs: list[tuple[str, str | None]] | list[tuple[str, str]]) -> list[str]:
    if not pairs:
        return []
    items = [f"- **{escaped(name)}**: {escaped(text or '')}" for name, text in pairs]
    return ["", f"#### {title}", "", *items]


EXPORTERS.add("markdown", Exporter(name="markdown", summary="for pull requests", write=write))
