"""What a job over several devices moves between them, how much of it is hidden, what is copied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tpu_perf.analysis.lanes import union_length
from tpu_perf.analysis.rung_record import NS, RungRecord, RunTables
from tpu_perf.analysis.step_time import NO_TIMED_STEPS, step_time
from tpu_perf.record.events import MODULE_LANE
from tpu_perf.record.metric import Metric

ONE_DEVICE = "this rung runs on one device"
#: The metrics and what they are measured in: of the compiled program, and of a device trace.
_COUNTS = {
    "collectives_per_step": "count",
    "collective_bytes_per_step": "bytes",
    "collective_sent_bytes_per_step": "bytes",
}
_TIMES = ("collective_exposed_time", "collective_hidden_time")
_REPLICATED = "replicated_bytes"
#: Instructions that stand for others on the timeline.
_CONTAINERS = ("while", "conditional", "call")


def is_spread(tables: RunTables) -> bool:
    """Whether the run used a mesh of devices."""
    return not tables.detail("placements").empty


def on_virtual_devices(rung: RungRecord) -> bool:
    """Whether the rung's devices are those that a CPU stands for."""
    environment = None if rung.run is None else rung.run.environment
    return environment is not None and environment.device_kind == "cpu"


def collectives(tables: RunTables) -> pd.DataFrame:
    """The rows of `collectives` with `per_step`: how often a mean timed step runs each; unknown
    where a loop's trip count is."""
    found = tables.detail("collectives")
    executes = tables.timed_events("execute")
    steps = max(1, len(tables.timed))
    runs = executes.groupby("program").size() / steps
    per_step = found["program"].map(runs).fillna(0.0) * found["trip_count"]
    return found.assign(per_step=per_step)[per_step != 0]


def moved(tables: RunTables) -> pd.DataFrame:
    """By kind, axes and role: `times`, `bytes` and `sent_bytes` of one step."""
    rows = collectives(tables)
    for column in ("bytes", "sent_bytes"):
        rows[column] = rows[column] * rows["per_step"]
    keys = ["kind", "axes", "role"]
    grouped = rows.groupby(keys, observed=True)[["per_step", "bytes", "sent_bytes"]].sum()
    ordered = grouped.sort_values("bytes", ascending=False)
    return ordered.rename(columns={"per_step": "times"}).reset_index()


def collective_metrics(tables: RunTables) -> dict[str, Metric]:
    """`collectives_per_step`, `collective_bytes_per_step` (of whole arrays: what a group of devices
    gathers, sums or exchanges), `collective_sent_bytes_per_step` (of each device, by the ring
    formula), `collective_exposed_time` and `collective_hidden_time` per step, a mean over devices,
    and `replicated_bytes`: state that a device holds and others hold too.

    Source: collectives.parquet (compiled HLO), placements.parquet, device events of probe steps.
    """
    if not is_spread(tables):
        units = {**_COUNTS, **dict.fromkeys(_TIMES, "s"), _REPLICATED: "bytes"}
        return {name: Metric.missing(unit, ONE_DEVICE) for name, unit in units.items()}
    copied = float(replicated(tables)["bytes"].sum())
    return {
        **_counts(tables),
        **_times(tables),
        _REPLICATED: Metric(value=copied, unit="bytes", provenance="derived"),
    }


def _counts(tables: RunTables) -> dict[str, Metric]:
    rows = collectives(tables)
    reason = None
    if tables.timed.empty:
        reason = NO_TIMED_STEPS
    elif rows["per_step"].isna().any():
        reason = "how often a loop around a collective runs is not known"
    if reason is not None:
        return {name: Metric.missing(unit, reason) for name, unit in _COUNTS.items()}
    times = rows["per_step"]
    values = (times.sum(), (times * rows["bytes"]).sum(), (times * rows["sent_bytes"]).sum())
    return {
        name: Metric(value=float(value), unit=unit, provenance="derived")
        for (name, unit), value in zip(_COUNTS.items(), values, strict=True)
    }


def replicated(tables: RunTables) -> pd.DataFrame:
    """Parameters and optimizer state that several devices hold alike: `bytes` is what one holds."""
    rows = tables.detail("placements")
    held = rows["bytes"] / rows["parts"].clip(lower=1)
    return rows.assign(bytes=held)[rows["parts"] < rows["devices"]]


def _times(tables: RunTables) -> dict[str, Metric]:
    """Seconds per step and device in which a collective is under way: with nothing else running on
    that device, and beside other work."""
    per_device = collective_times(tables)
    if not per_device.empty:
        means = per_device[["exposed_ns", "hidden_ns"]].mean() * NS
        return {
            name: Metric(value=float(mean), unit="s", provenance="measured")
            for name, mean in zip(_TIMES, means, strict=True)
        }
    if collectives(tables).empty:
        return dict.fromkeys(_TIMES, Metric(value=0.0, unit="s", provenance="derived"))
    return dict.fromkeys(_TIMES, Metric.missing("s", "XLA's profiler reported no collective"))


def collective_times(tables: RunTables) -> pd.DataFrame:
    """A row a device lane and probe step: `lane`, `step`, `exposed_ns`, `hidden_ns`."""
    events = _device_events(tables)
    rows = []
    for (lane, step), one in events.groupby(["lane", "step"], observed=True):
        spans = _collective_spans(one)
        other = (one["awaited"] == "") & (one["kind"] == "")
        others = one.loc[other, ["t_start_ns", "t_end_ns"]]
        own = others.to_numpy(dtype=np.int64)
        beside = union_length(own)
        exposed = union_length(np.concatenate([spans, own])) - beside
        rows.append((lane, step, exposed, union_length(spans) - exposed))
    return pd.DataFrame(rows, columns=["lane", "step", "exposed_ns", "hidden_ns"])


def slowest(tables: RunTables, top: int = 3) -> pd.DataFrame:
    """The collectives that are under way longest: `instruction`, `program`, `ns` a step and device,
    and what `collectives` says of them."""
    events = _device_events(tables)
    known = events[events["kind"] != ""]
    lanes = max(1, events.groupby(["lane", "step"], observed=True).ngroups)
    spent = (known["t_end_ns"] - known["t_start_ns"]).groupby(
        [known["program"], known["instruction"]], observed=True
    )
    frame = (spent.sum() / lanes).rename("ns").reset_index()
    rows = tables.detail("collectives")
    rows = rows.assign(instruction=rows["instruction"].astype(object))
    frame = frame.assign(instruction=frame["instruction"].astype(object))
    merged = frame.merge(rows, on=["program", "instruction"])
    return merged.sort_values("ns", ascending=False).head(top)


def _device_events(tables: RunTables) -> pd.DataFrame:
    """Device events of steps. `kind` is the collective that an event is, "" for none; `done` the
    instruction that waits for it; `awaited` the collective that an event waits for. Spans of loops
    and calls are left out."""
    events = tables.events("device")
    found = events[(events["lane"] != MODULE_LANE) & (events["step"] >= 0)]
    found = found.astype({"lane": object, "instruction": object})
    names = ["program", "instruction"]
    rows = tables.detail("collectives")[[*names, "kind", "done"]]
    rows = rows.astype({"instruction": object, "kind": object, "done": object})
    waiting = rows.loc[rows["done"] != "", ["program", "done", "instruction"]]
    waiting = waiting.set_axis([*names, "awaited"], axis=1)
    found = found.merge(rows, how="left", on=names).merge(waiting, how="left", on=names)
    found = found.fillna({"kind": "", "done": "", "awaited": ""})
    others = tables.detail("instructions")
    inside = others.loc[others["opcode"].isin(_CONTAINERS), names].astype({"instruction": object})
    marked = found.merge(inside.drop_duplicates(), how="left", on=names, indicator=True)
    return found[(marked["_merge"] == "left_only").to_numpy()]


def _collective_spans(events: pd.DataFrame) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Spans in which a collective is under way on one device: an asynchronous one from its start
    until the end of the instruction that waits for it."""
    begun: dict[str, int] = {}
    spans = []
    for row in events.sort_values("t_start_ns").to_dict("records"):
        if row["kind"] and not row["done"]:
            spans.append((row["t_start_ns"], row["t_end_ns"]))
        elif row["kind"]:
            begun[row["instruction"]] = row["t_start_ns"]
        elif row["awaited"]:
            spans.append((begun.pop(row["awaited"], row["t_start_ns"]), row["t_end_ns"]))
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


def scaling_efficiency(rung: RungRecord, others: Sequence[RungRecord]) -> Metric:
    """step_time of the same job on one device / (step_time x devices), a fraction of the ideal.

    The virtual devices of a CPU share its cores, so all of them count as one device. The rung on
    one device is the first of the same engine, mode, precision, workload and optimizer.
    """
    plan = None if rung.run is None else rung.run.plan
    if plan is None or plan.sharding is None:
        return Metric.missing("fraction", ONE_DEVICE)
    alone = next((other for other in others if _is_alone(other, rung)), None)
    if alone is None:
        return Metric.missing(
            "fraction", f"the ladder has no {plan.mode} rung of this job on one device"
        )
    mine, one = step_time(rung.measured), step_time(alone.measured)
    if mine.value is None or one.value is None:
        return Metric.missing("fraction", mine.reason or one.reason or NO_TIMED_STEPS)
    devices = 1 if on_virtual_devices(rung) else plan.sharding.devices
    return Metric(value=one.value / (mine.value * devices), unit="fraction", provenance="derived")


def _is_alone(other: RungRecord, rung: RungRecord) -> bool:
    if other.run is None or rung.run is None or not other.ok or other.tables is None:
        return False
    mine, its = rung.run.plan, other.run.plan
    same = ("engine", "mode", "precision", "workload", "optimizer")
    return its.sharding is None and all(getattr(mine, n) == getattr(its, n) for n in same)
