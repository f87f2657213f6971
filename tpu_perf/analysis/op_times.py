"""Host time of aten ops: each instant belongs to the innermost op, summed by whatever is asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from tpu_perf.analysis.rung_record import RunTables
from tpu_perf.record.store import StoredRun

#: What an op can be summed by, all columns of `op_rows`.
KEYS = ("op", "module", "module_class", "file", "line", "phase")
UNKNOWN = "unknown"


def self_times(
    start_ns: npt.NDArray[np.int64],
    end_ns: npt.NDArray[np.int64],
    thread: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Nanoseconds of each span without what the spans directly inside it take; int64, in the
    order given. Spans of different threads never contain each other."""
    order = np.lexsort((-end_ns, start_ns, thread))
    starts, ends = start_ns[order].tolist(), end_ns[order].tolist()
    threads = thread[order].tolist()
    own = (end_ns - start_ns)[order].tolist()
    stack: list[int] = []
    current = None
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if threads[number] != current:
            current = threads[number]
            stack.clear()
        while stack and ends[stack[-1]] <= start:
            stack.pop()
        if stack:
            # Spans that overlap without nesting share an instant: it is the later one's.
            own[stack[-1]] -= min(end, ends[stack[-1]]) - start
        stack.append(number)
    out = np.empty(len(order), dtype=np.int64)
    out[order] = own
    return out


def counted_steps(tables: RunTables) -> tuple[pd.DataFrame, str]:
    """The steps whose ops are summed, and a sentence that says which they are.

    Timed steps free of compiles if any of them has dispatch events, else probe steps, else all.
    """
    with_ops = set(tables.events("dispatch")["step"].unique())
    for steps, name in (
        (tables.timed, "timed steps without compiles"),
        (tables.phase("probe"), "probe steps"),
        (tables.steps, "steps of any phase"),
    ):
        chosen = steps[steps["step"].isin(with_ops)]
        if not chosen.empty:
            return chosen, f"{len(chosen):,} {name}"
    return tables.steps.iloc[:0], "no steps: all events of the run"


def op_rows(stored: StoredRun, tables: RunTables | None = None) -> tuple[pd.DataFrame, str]:
    """One row for each dispatch of the steps that count: KEYS, `step`, `total_ns`, `self_ns`,
    and `bytes` of its program's arguments and results (NaN where the op shares its program
    with others or has none); and which steps those are. Places that are not known read
    "unknown", lines -1."""
    tables = tables or RunTables(stored)
    steps, which = counted_steps(tables)
    dispatch = tables.events("dispatch")
    if not steps.empty:
        dispatch = dispatch[dispatch["step"].isin(steps["step"])]
    start = dispatch["t_start_ns"].to_numpy(dtype=np.int64)
    end = dispatch["t_end_ns"].to_numpy(dtype=np.int64)
    rows = pd.DataFrame(
        {
            "op": dispatch["op"].astype("object").fillna(UNKNOWN).to_numpy(),
            "step": dispatch["step"].to_numpy(),
            "total_ns": end - start,
            "self_ns": self_times(start, end, dispatch["thread"].to_numpy(dtype=np.int64)),
            "bytes": dispatch["program"].map(_bytes_of_single_ops(tables)).to_numpy("float64"),
        }
    )
    sites = stored.detail("sites").drop_duplicates("site").set_index("site")
    places = sites.reindex(dispatch["site"].to_numpy())
    for name in ("module", "module_class", "file", "phase"):
        rows[name] = places[name].astype("object").fillna(UNKNOWN).to_numpy()
    rows["line"] = places["line"].fillna(-1).to_numpy(dtype=np.int64)
    return rows, which


def _bytes_of_single_ops(tables: RunTables) -> pd.Series[float]:
    programs = tables.programs
    single = programs[programs["ops"] == 1]
    moved = (single["bytes_in"] + single["bytes_out"]).astype("float64")
    return moved[moved >= 0]


def aggregated(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Rows of `op_rows` summed by some of KEYS: those keys, `count`, `total_ns`, `self_ns`,
    `bytes` (null unless known for every one of them), longest self time first."""
    if rows.empty:
        columns = [*by, "count", "total_ns", "self_ns", "bytes"]
        return pd.DataFrame({name: [] for name in columns})
    grouped = rows.groupby(list(by), sort=False, observed=True, dropna=False)
    out = grouped.agg(
        count=("self_ns", "size"),
        total_ns=("total_ns", "sum"),
        self_ns=("self_ns", "sum"),
        bytes=("bytes", "sum"),
        known=("bytes", "count"),
    ).reset_index()
    out["bytes"] = out["bytes"].where(out["known"] == out["count"])
    out = out.drop(columns="known").sort_values("self_ns", ascending=False, kind="stable")
    return out.reset_index(drop=True)
