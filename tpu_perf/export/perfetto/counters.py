"""Counters of a trace: live device bytes, cache misses so far, FLOP/s of each step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tpu_perf.export.perfetto.tracks import Counter
from tpu_perf.record.events import Tier

LIVE_BYTES = "live device bytes"
CACHE_MISSES = "program cache misses"
FLOPS = "FLOP/s"


def with_misses(tables: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, str]:
    """Each miss of the program cache's memory tier in time order: `t_start_ns`, and `misses` so
    far; and what was counted. The execute events say which tier answered; runs without them
    (captures of other tools) have only their compile events."""
    execute = tables["execute"]
    if execute.empty:
        missed, source = tables["compile"], "compile events"
    else:
        missed, source = execute[execute["tier"] != int(Tier.MEMORY)], "execute events"
    missed = missed[["t_start_ns"]].sort_values("t_start_ns", kind="stable")
    return missed.assign(misses=np.arange(1, len(missed) + 1)), source


def counters(
    tables: Mapping[str, pd.DataFrame],
    steps: pd.DataFrame,
    programs: pd.DataFrame,
    misses: pd.DataFrame,
    notes: list[str],
) -> list[Counter]:
    """The counters for which the run has data, each sorted by time."""
    out = []
    memory = tables["memory"].sort_values("t_ns", kind="stable")
    if not memory.empty:
        out.append(
            Counter(
                name=LIVE_BYTES,
                unit="bytes",
                t_ns=memory["t_ns"].to_numpy(dtype=np.int64),
                values=memory["live_bytes"].to_numpy(dtype=np.int64),
            )
        )
    if not misses.empty:
        out.append(
            Counter(
                name=CACHE_MISSES,
                unit="misses",
                t_ns=misses["t_start_ns"].to_numpy(dtype=np.int64),
                values=misses["misses"].to_numpy(dtype=np.int64),
            )
        )
    flops = _flops(tables["execute"], steps, programs, notes)
    return [*out, flops] if flops is not None else out


def _flops(
    execute: pd.DataFrame, steps: pd.DataFrame, programs: pd.DataFrame, notes: list[str]
) -> Counter | None:
    """FLOPs of the programs a step executed (XLA's count) over the step's duration, at the step's
    start. A step that executed a program without a count has no value: a part is not a sum."""
    if execute.empty or steps.empty:
        return None
    counts = programs.drop_duplicates("program", keep="last").set_index("program")["flops"]
    counts = counts.astype("float64")
    counted = execute["program"].map(counts[counts >= 0])
    per_step = counted.groupby(execute["step"].to_numpy()).agg(lambda rows: rows.sum(skipna=False))
    rows = steps.sort_values("t_start_ns", kind="stable").drop_duplicates("step")
    seconds = (rows["t_end_ns"] - rows["t_start_ns"]).to_numpy("float64") * 1e-9
    values = per_step.reindex(rows["step"]).to_numpy("float64")
    known = np.isfinite(values) & (seconds > 0)
    if not known.any():
        notes.append("FLOP/s: not shown, XLA gave no FLOPs for some program of every step")
        return None
    notes.append(
        f"FLOP/s: derived from XLA's count for the programs executed, known for {known.sum():,} "
        f"of {len(rows):,} steps; each value holds from its step's start to the next one's"
    )
    return Counter(
        name=FLOPS,
        unit="FLOP/s",
        t_ns=rows["t_start_ns"].to_numpy(dtype=np.int64)[known],
        values=values[known] / seconds[known],
    )
