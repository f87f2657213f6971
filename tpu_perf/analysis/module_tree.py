"""Time of a steady step by module and, within a module, by op, as one tree."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pandas as pd

from tpu_perf.analysis.host_self_time import dispatches
from tpu_perf.analysis.measured_ops import MeasuredOps
from tpu_perf.analysis.op_flops.call import base_name
from tpu_perf.analysis.run_details import OUTSIDE, UNKNOWN, RunDetails
from tpu_perf.analysis.rung_record import NS, RunTables

ROOT = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """`own_s`: seconds a step that belong to it and to none of its children. `is_op`: a leaf."""

    id: str
    parent: str
    label: str
    own_s: float
    is_op: bool = False


def host_rows(tables: RunTables) -> pd.DataFrame:
    """Host time of dispatches, each instant the innermost op's: op, site, s (a steady step)."""
    rows = dispatches(tables)
    seconds = rows["self_ns"] * NS / max(1, len(tables.timed))
    return rows[["op", "site"]].assign(s=seconds)


def device_rows(measured: MeasuredOps) -> pd.DataFrame | None:
    """Device time of the ops of programs: op, site, s (a steady step); None if not measured."""
    if measured.device is None:
        return None
    return measured.rows[["op", "site"]].assign(s=measured.rows["device_ns"] * NS)


def module_tree(rows: pd.DataFrame, details: RunDetails) -> tuple[Node, ...]:
    """Rows of `host_rows` or `device_rows` as nodes, parents before children: ROOT, the path of
    each module part by part, and as leaves the ops a module itself calls."""
    paths = {number: _path(details, number) for number in rows["site"].unique()}
    sums: dict[tuple[tuple[str, ...], str], float] = defaultdict(float)
    summed = rows.groupby(["site", "op"], observed=True)["s"].sum().reset_index()
    for site, op, seconds in summed.itertuples(index=False):
        sums[paths[site], base_name(str(op)).removeprefix("aten::")] += float(seconds)
    nodes: dict[str, Node] = {ROOT: Node(id=ROOT, parent="", label=ROOT, own_s=0.0)}
    for (path, op), seconds in sorted(sums.items(), key=_order):
        parent = ROOT
        for part in path:
            here = f"{parent}/{part}"
            nodes.setdefault(here, Node(id=here, parent=parent, label=part, own_s=0.0))
            parent = here
        leaf = f"{parent}//{op}"
        nodes[leaf] = Node(id=leaf, parent=parent, label=op, own_s=seconds, is_op=True)
    return tuple(nodes.values())


def _path(details: RunDetails, number: int) -> tuple[str, ...]:
    site = details.site(int(number))
    if site is None:
        return (UNKNOWN,)
    return tuple(site.module.split(".")) if site.module else (OUTSIDE,)


def _order(
    entry: tuple[tuple[tuple[str, ...], str], float],
) -> tuple[list[tuple[bool, str]], float, str]:
    """Modules by name, layers by number, and the ops of a module that take most time first."""
    (path, op), seconds = entry
    return [(part.isdigit(), part.zfill(9)) for part in path], -seconds, op
