"""One run in tables, as every plain export shows it: steps, ops, programs, compiles, memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from tpu_perf.analysis.ladder_metrics import all_missing, metrics_of
from tpu_perf.analysis.op_times import UNKNOWN, aggregated, op_rows
from tpu_perf.analysis.program_cache import program_table
from tpu_perf.analysis.rung_record import RungRecord, RunTables
from tpu_perf.record.events import Tier
from tpu_perf.record.metric import METRIC_UNITS, Metric
from tpu_perf.record.store import StoredRun

#: The tables of ops, each with the columns it is summed by.
OP_TABLES: dict[str, tuple[str, ...]] = {
    "ops": ("op",),
    "modules": ("module", "module_class"),
    "lines": ("file", "line", "phase"),
    "phases": ("phase",),
}
NO_OTHER_RUN = "needs a second run to compare with"


@dataclass(frozen=True)
class RunSummary:
    """Reads a stored run's tables when they are first asked for."""

    stored: StoredRun

    @cached_property
    def tables(self) -> RunTables:
        return RunTables(self.stored)

    @cached_property
    def rung(self) -> RungRecord:
        """The run as a rung of its own, with the metrics that need no other run."""
        run = self.stored.run
        stored = run.metrics
        if not METRIC_UNITS.keys() <= stored.keys():
            made = (
                metrics_of(self.tables, run.facts)
                if run.status == "ok"
                else all_missing(f"{run.status}: {run.reason}")
            )
            compared = ("speedup", "scaling_efficiency")
            alone = {n: Metric.missing(METRIC_UNITS[n], NO_OTHER_RUN) for n in compared}
            metrics = {**alone, **made, **stored}
            run = replace(run, metrics={name: metrics[name] for name in METRIC_UNITS})
        return RungRecord(
            name=run.plan.rung,
            directory=self.stored.directory,
            path=self.stored.directory.name,
            status=run.status,
            reason=run.reason,
            run=run,
            tables=self.tables,
        )

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Steps with `duration_ns`; loss and gradient norm NaN where there is none."""
        steps = self.tables.steps
        return steps.assign(duration_ns=steps["t_end_ns"] - steps["t_start_ns"])

    @cached_property
    def _ops(self) -> tuple[pd.DataFrame, str]:
        return op_rows(self.stored, self.tables)

    @property
    def counted(self) -> str:
        """Which steps the tables of ops sum over."""
        return self._ops[1]

    def ops(self, table: str) -> pd.DataFrame:
        """A table of OP_TABLES: host time of dispatch, count and bytes."""
        return aggregated(self._ops[0], OP_TABLES[table])

    @cached_property
    def programs(self) -> pd.DataFrame:
        """Programs by number: cost, compile time and executions; costs NaN where not known."""
        made = program_table(self.tables)
        more = ["key", "bytes_accessed", "flops", "temp_bytes", "donated_bytes"]
        table = made.join(self.tables.programs[more])
        for name in ("bytes_accessed", "flops", "bytes_in", "bytes_out"):
            table[name] = table[name].astype("float64").where(table[name] >= 0)
        table["tier"] = table["tier"].map(tier_name)
        return table.reset_index()

    @cached_property
    def compiles(self) -> pd.DataFrame:
        """Compile events in order, with the program's name and the tier's."""
        events = self.tables.events("compile").sort_values("t_start_ns", kind="stable")
        names = self.tables.programs["name"].astype("object")
        return events.assign(
            tier=events["tier"].map(tier_name).astype("object"),
            name=events["program"].map(names).astype("object").fillna(UNKNOWN),
        ).reset_index(drop=True)

    @cached_property
    def memory(self) -> pd.DataFrame:
        """Memory events in time order."""
        return (
            self.tables.events("memory").sort_values("t_ns", kind="stable").reset_index(drop=True)
        )

    @cached_property
    def peak_holders(self) -> pd.DataFrame:
        """What was alive when live bytes were highest: `category`, `name`, `buffers`, `bytes`,
        most bytes first.

        A buffer is named by the label found on it while it lived, else by the module and phase
        in which it was allocated, else "unknown". Bytes allocated before recording began have no
        event; they are the row "before recording", in how many buffers is not known (NaN).
        """
        memory = self.memory
        if memory.empty:
            return pd.DataFrame({"category": [], "name": [], "buffers": [], "bytes": []})
        at = int(memory["live_bytes"].to_numpy().argmax())
        newest = memory.iloc[: at + 1].drop_duplicates("buffer", keep="last")
        alive = newest[newest["delta_bytes"] > 0]
        released = memory.iloc[at + 1 :].drop_duplicates("buffer").set_index("buffer")["t_ns"]
        labels = self.stored.detail("buffer_labels")
        sites = self.stored.detail("sites").drop_duplicates("site").set_index("site")
        rows = []
        for event in alive.to_dict("records"):
            time, buffer, size = event["t_ns"], event["buffer"], int(event["delta_bytes"])
            of_it = labels[
                (labels["buffer"] == buffer)
                & (labels["t_ns"] >= time)
                & (labels["t_ns"] < released.get(buffer, np.inf))
            ]
            if len(of_it):
                label = of_it.iloc[-1]
                rows.append((str(label["category"]), str(label["name"]), size))
            elif event["site"] in sites.index:
                site = sites.loc[event["site"]]
                place = str(site["module"]) or f"{site['file']}:{site['line']}"
                rows.append((f"allocated in {site['phase']}", place, size))
            else:
                rows.append((UNKNOWN, UNKNOWN, size))
        before = int(memory["live_bytes"].iloc[at]) - sum(row[2] for row in rows)
        held = pd.DataFrame(rows, columns=["category", "name", "bytes"])
        grouped = held.groupby(["category", "name"], sort=False)["bytes"].agg(["size", "sum"])
        out = grouped.reset_index().rename(columns={"size": "buffers", "sum": "bytes"})
        if before > 0:
            earlier = pd.DataFrame(
                [("before recording", UNKNOWN, np.nan, before)], columns=out.columns
            )
            out = pd.concat([out, earlier], ignore_index=True)
        return out.sort_values("bytes", ascending=False, kind="stable").reset_index(drop=True)


def tier_name(value: Any) -> str:
    """The tier's name; "unknown" for -1 and for programs that were never compiled here."""
    try:
        return Tier(int(value)).name.lower()
    except ValueError:
        return UNKNOWN
