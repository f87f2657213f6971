"""A steady step by op, module, line, category, program or phase: time, FLOPs, bytes, roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd

from tpu_perf.analysis.host_self_time import dispatches
from tpu_perf.analysis.measured_ops import ADDITIVE, MeasuredOps
from tpu_perf.analysis.op_category import category_of
from tpu_perf.analysis.op_flops.call import base_name
from tpu_perf.analysis.roofline import Machine, position
from tpu_perf.analysis.run_details import UNKNOWN, RunDetails
from tpu_perf.analysis.rung_record import NS, RunTables
from tpu_perf.record.metric import Metric, Provenance

By = Literal["op", "module", "line", "category", "program", "phase"]
GROUPINGS: tuple[str, ...] = get_args(By)

#: Measures of a row with their units, in the order in which documents list them.
MEASURES: dict[str, str] = {
    "calls": "count",
    "runs": "count",
    "host_time": "s",
    "device_time": "s",
    "share": "fraction",
    "model_flops": "FLOP",
    "hardware_flops": "FLOP",
    "recomputed": "count",
    "boundary_bytes": "bytes",
    "accessed_bytes": "bytes",
    "intensity": "FLOP/byte",
    "roofline": "fraction",
}
WHAT: dict[str, str] = {
    "calls": "dispatches a step on the host",
    "runs": "executions a step inside programs",
    "host_time": "host time a step in its dispatches, without dispatches nested in them",
    "device_time": "device time a step, from the steps in which XLA's profiler ran",
    "share": "device time (without it, host time) over step time",
    "model_flops": "FLOPs that the mathematics needs",
    "hardware_flops": "FLOPs as executed",
    "recomputed": "executions a step that compute a forward op again",
    "boundary_bytes": "bytes into and out of programs",
    "accessed_bytes": "bytes that XLA says its programs touch, temporaries included",
    "intensity": "hardware FLOPs over accessed bytes, else over boundary bytes",
    "roofline": "hardware FLOP/s over what peak and bandwidth allow at this intensity",
}
NO_PROGRAM = "(no program)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One group. `bound` is the roof above it: compute | memory | unknown."""

    label: str
    measures: Mapping[str, Metric]
    bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """Rows, those that take most time first, and the whole step as one row."""

    by: By
    rows: tuple[TableRow, ...]
    total: TableRow
    share_of: str  # what `share` is of: device time | host time


def op_table(
    by: By, tables: RunTables, details: RunDetails, measured: MeasuredOps, step_s: float | None,
    machine: Machine,
) -> OpTable:  # fmt: skip
    """Group what steady steps dispatched and executed. `step_s`: median step time in seconds."""
    host = dispatches(tables)
    work_labels = labels(by, measured.rows, tables, details)
    host_labels = labels(by, host, tables, details)
    steps = max(1, measured.steps)
    sums = _sums(measured.rows, work_labels)
    of_host = host.assign(label=host_labels).groupby("label")["self_ns"].agg(["size", "sum"])
    share_of = "host time" if measured.device is None else "device time"
    whole = measured.device is not None and by == "program"
    make = _RowMaker(step_s, machine, share_of, whole and not _scaled(measured), measured)
    rows = [
        make.row(
            label,
            _row_of(sums, label),
            float(of_host["size"].get(label, 0)) / steps,
            float(of_host["sum"].get(label, 0)) / steps,
        )
        for label in dict.fromkeys([*sums.index, *of_host.index])
    ]
    rows.sort(key=_weight, reverse=True)
    everything = _sums(measured.rows, pd.Series("step", index=measured.rows.index))
    total = make.row(
        "step", _row_of(everything, "step"),
        len(host) / steps, float(host["self_ns"].sum()) / steps,
    )  # fmt: skip
    return OpTable(by=by, rows=tuple(rows), total=total, share_of=share_of)


def _row_of(sums: pd.DataFrame, label: str) -> pd.Series[float] | None:
    if label not in sums.index:
        return None
    return pd.Series({column: float(sums[column][label]) for column in sums.columns})


def _weight(row: TableRow) -> tuple[float, float, float]:
    def value(name: str) -> float:
        return row.measures[name].value or 0.0

    return value("device_time"), value("host_time"), value("hardware_flops")


def _scaled(measured: MeasuredOps) -> bool:
    """Whether a profiled step ran other programs, or as often, as a steady one."""
    if measured.device is None:
        return False
    rows = measured.rows.drop_duplicates(["program", "position", "site"])
    steady = rows.groupby(["program", "position"])["per_step"].sum().groupby("program").max()
    return any(
        abs(measured.device.executions.get(int(str(program)), 0.0) - runs) > 1e-9
        for program, runs in steady.items()
    )


def _sums(rows: pd.DataFrame, labels: pd.Series[str]) -> pd.DataFrame:
    """Sums by label; a sum with an unknown part is unknown."""
    columns = ["per_step", "recomputed", *ADDITIVE]
    groups = rows[columns].groupby(labels.to_numpy())
    unknown = rows[columns].isna().groupby(labels.to_numpy()).any()
    sums: pd.DataFrame = groups.sum().astype("float64").mask(unknown, np.nan)
    return sums


def labels(by: By, rows: pd.DataFrame, tables: RunTables, details: RunDetails) -> pd.Series[str]:
    """The group of every row of ops or dispatches; `rows` has the column that `by` needs."""
    if by == "op":
        return _mapped(rows["op"], lambda op: base_name(str(op)).removeprefix("aten::"))
    if by == "category":
        return _mapped(rows["op"], lambda op: category_of(str(op)))
    if by == "program":
        names = tables.programs["name"].astype(str)

        def of_program(number: object) -> str:
            program = int(str(number))
            return NO_PROGRAM if program < 0 else f"{program} {names.get(program, UNKNOWN)}"

        return _mapped(rows["program"], of_program)
    sites = details.sites

    def of_site(number: object) -> str:
        site = sites.get(int(str(number)))
        if site is None:
            return UNKNOWN
        if by == "module":
            return site.module_label
        return site.phase if by == "phase" else site.line_label

    return _mapped(rows["site"], of_site)


def _mapped(column: pd.Series, label: Callable[[object], str]) -> pd.Series[str]:
    codes, distinct = pd.factorize(column, use_na_sentinel=False)
    known = np.array([label(value) for value in distinct], dtype=object)
    return pd.Series(known[codes], index=column.index, dtype="object")


class _RowMaker:
    """Turns sums into metrics, with a reason for each that is missing."""

    def __init__(
        self, step_s: float | None, machine: Machine, share_of: str, device_as_measured: bool,
        measured: MeasuredOps,
    ) -> None:  # fmt: skip
        self._step_s = step_s
        self._machine = machine
        self._share_of = share_of
        self._device: Provenance = "measured" if device_as_measured else "derived"
        self._unknown = measured.unknown

    def row(
        self, label: str, sums: pd.Series[float] | None, calls: float, host_ns: float
    ) -> TableRow:
        """`sums` is None for what was dispatched and ran in no program."""
        out = {
            "calls": _metric(calls, "calls", "measured"),
            "host_time": _metric(host_ns * NS, "host_time", "measured"),
        }
        runs, again = (0.0, 0.0) if sums is None else (sums["per_step"], sums["recomputed"])
        out["runs"] = _metric(float(runs), "runs", "measured")
        out["recomputed"] = _metric(float(again), "recomputed", "derived")
        for column in ADDITIVE:
            out[_NAMES.get(column, column)] = self._additive(column, sums)
        flops, device = out["hardware_flops"].value, out["device_time"].value
        moved = out["accessed_bytes"].value
        moved = out["boundary_bytes"].value if moved is None else moved
        out["intensity"] = (
            _metric(flops / moved, "intensity", "derived")
            if flops is not None and moved
            else Metric.missing("FLOP/byte", "its FLOPs or its bytes are not known, or none")
        )
        found = position(flops, moved, device, self._machine)
        out["roofline"] = found.reached
        out["share"] = self._share(out)
        ordered = {name: out[name] for name in MEASURES}
        return TableRow(label=label, measures=ordered, bound=found.bound)

    def _additive(self, column: str, sums: pd.Series[float] | None) -> Metric:
        name = _NAMES.get(column, column)
        value = 0.0 if sums is None else float(sums[column])
        if sums is None and column == "device_ns" and "device_ns" in self._unknown:
            value = float("nan")
        if np.isnan(value):
            reasons = self._unknown.get(column, {})
            most = max(reasons, key=lambda reason: reasons[reason], default="not recorded")
            return Metric.missing(MEASURES[name], most)
        scale = NS if column == "device_ns" else 1.0
        provenance = self._device if column == "device_ns" else "derived"
        return _metric(value * scale, name, provenance)

    def _share(self, out: Mapping[str, Metric]) -> Metric:
        part = out["device_time" if self._share_of == "device time" else "host_time"].value
        if part is None or not self._step_s:
            return Metric.missing("fraction", "needs the time of the group and of the step")
        return _metric(part / self._step_s, "share", "derived")


_NAMES = {"device_ns": "device_time"}


def _metric(value: float, name: str, provenance: Provenance) -> Metric:
    return Metric(value=value, unit=MEASURES[name], provenance=provenance)
