"""Exporter `html` of a run: run.html, one self-contained file that works offline."""

from __future__ import annotations

import json
import math
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tpu_perf.errors import ExportMismatch
from tpu_perf.export.html import render
from tpu_perf.export.report.figures import MAX_POINTS
from tpu_perf.export.report.run_page import RunPage
from tpu_perf.export.run_interface import RUN_EXPORTERS, Exported, RunExporter
from tpu_perf.record.store import StoredRun

FILE_NAME = "run.html"


def write(stored: StoredRun, directory: Path) -> Exported:
    """Write run.html and read it back; a file that is not what it should be is removed and
    ExportMismatch raised."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE_NAME
    temporary = path.with_name(f"{FILE_NAME}.{os.getpid()}.tmp")
    page = RunPage(stored)
    try:
        temporary.write_text(render("run.html.j2", page.content()), encoding="utf-8")
        verify(temporary, page)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    notes = [f"not analysed: {page.not_analysed}"] if page.not_analysed else []
    return Exported(files=[path], notes=notes, opens_with="a browser, offline too")


class WrittenPage(HTMLParser):
    """The tables of a page as text, and the data of its charts, as a browser finds them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[tuple[str, ...]]] = []
        self.figures: dict[str, Any] = {}
        self._row: list[str] | None = None
        self._cell: str | None = None
        self._script: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self._row = []
        elif tag in ("th", "td"):
            self._cell = ""
        elif tag == "script":
            self._script = "" if ("id", "figures") in attrs else None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell += data
        elif self._script is not None:
            self._script += data

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td") and self._cell is not None and self._row is not None:
            self._row.append(self._cell)
            self._cell = None
        elif tag == "tr" and self._row is not None and self.tables:
            self.tables[-1].append(tuple(self._row))
            self._row = None
        elif tag == "script" and self._script is not None:
            self.figures = json.loads(self._script)
            self._script = None


def verify(path: Path, page: RunPage) -> None:
    """Compare what a reader finds in the file with what was to be shown, and the number and total
    time of its steps with the run's. Raises ExportMismatch."""
    found = WrittenPage(path.read_text(encoding="utf-8"))
    wanted = [[table.head, *table.rows] for table in page.tables]
    if len(found.tables) != len(wanted):
        raise ExportMismatch(f"{len(wanted)} tables were written, {len(found.tables)} read back")
    for table, read, written in zip(page.tables, found.tables, wanted, strict=True):
        if read != written:
            raise ExportMismatch(f"the table {table.caption!r} does not read back as written")
    if found.figures != json.loads(json.dumps(page.figure_data)):
        raise ExportMismatch("the data of the charts do not read back as written")
    steps = page.summary.steps
    if steps.empty or len(steps) > MAX_POINTS:
        return
    drawn = [
        value
        for trace in found.figures["step-series"]["data"]
        if trace["name"] != "compiles"
        for value in trace["y"]
    ]
    total_ms = float(steps["duration_ns"].sum()) / 1e6
    if len(drawn) != len(steps) or not math.isclose(sum(drawn), total_ms, rel_tol=1e-9):
        raise ExportMismatch(
            f"the run has {len(steps)} steps of {total_ms} ms in all, the page shows "
            f"{len(drawn)} of {sum(drawn)} ms"
        )


RUN_EXPORTERS.add(
    "html", RunExporter(name="html", summary="charts and tables in one offline page", write=write)
)
