"""Steps of a capture, and which of them each event lies in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tpu_perf.record.events import STEP_COLUMNS
from tpu_perf.record.store import table_of_rows

#: What was recorded under a profiler is no measurement of step time.
PHASE = "probe"


@dataclass(frozen=True, slots=True)
class StepSpan:
    number: int
    start_ns: int
    end_ns: int


def in_steps(
    rows: Sequence[tuple[Any, ...]], steps: Sequence[StepSpan], column: int
) -> list[tuple[Any, ...]]:
    """The rows with the number of the step in which each begins at `column`, -1 outside steps.
    A row's first value is its time in ns."""
    starts = [step.start_ns for step in steps]
    out = []
    for row in rows:
        at = bisect_right(starts, row[0]) - 1
        inside = at >= 0 and row[0] < steps[at].end_ns
        number = steps[at].number if inside else -1
        out.append((*row[:column], number, *row[column + 1 :]))
    return out


def step_table(steps: Sequence[StepSpan]) -> pa.Table:
    """Rows of steps.parquet. When the step function returned is not known, so it is the end;
    loss and gradient norm are unknown."""
    return table_of_rows(
        STEP_COLUMNS,
        [
            (step.number, PHASE, -1, step.start_ns, step.end_ns, step.end_ns, 0, None, None)
            for step in steps
        ],
    )
